"""Gradient reductions in a schedule: each must be on all its workers, once, after all its gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import COLLECTIVES, Action
from autopar.pipeline.schedules.schedule import Schedule

Ties = Sequence[Sequence[int]]
"""Groups of stages that share weights."""


def completing(actions: Sequence[Action]) -> tuple[Action, ...]:
    """Return the last backward of every stage of a worker, which completes its gradients, in order."""
    last = {action.stage: action for action in actions if action.kind in ("B", "W")}
    return tuple(action for action in actions if last.get(action.stage) == action)


def check_collectives(schedule: Schedule, ties: Ties) -> None:
    """Raise `ScheduleError` if reductions are missing, duplicate, unknown or misplaced.

    Synchronous lists have one REDUCE per held stage and one TIE per group, after all gradients.
    Asynchronous lists have one REDUCE before each U.
    """
    for worker, row in enumerate(schedule.workers):
        place = {action: position for position, action in enumerate(row)}
        expected = [] if schedule.asynchronous else _at_the_end(schedule, worker, ties)
        expected += [Action("REDUCE", a.stage, a.microbatch) for a in row if a.kind == "U"]
        found = Counter(action for action in row if action.kind in COLLECTIVES)
        for action in expected:
            if found[action] != 1:
                raise ScheduleError(
                    f"{schedule.name}, worker {worker}: {action} must occur once, not "
                    f"{found[action]} times."
                )
        known = set(expected)
        for action in found:
            where = f"{schedule.name}, worker {worker}, position {place[action]}: {action}"
            if action not in known:
                raise ScheduleError(f"{where} sums gradients that this worker does not have.")
            update = Action("U", action.stage, action.microbatch)
            if schedule.asynchronous and place[update] < place[action]:
                raise ScheduleError(f"{where} comes after {update}, which needs it.")
            for early in islice(row, place[action] + 1, None):
                if _adds_to(early, action, ties):
                    raise ScheduleError(f"{where} comes before {early}, whose gradient it sums.")
                if early.kind == "U" and early.stage == action.stage:
                    break


def _at_the_end(schedule: Schedule, worker: int, ties: Ties) -> list[Action]:
    held = set(schedule.held[worker])
    tied = [Action("TIE", min(group), 0) for group in ties if held & set(group)]
    return [Action("REDUCE", stage, 0) for stage in sorted(held)] + tied


def _adds_to(early: Action, collective: Action, ties: Ties) -> bool:
    """Return whether an action produces gradients that the collective sums."""
    if collective.kind == "REDUCE":
        return early.kind in ("B", "W") and early.stage == collective.stage
    stages = next(group for group in ties if min(group) == collective.stage)
    return early.kind in ("B", "W", "REDUCE") and early.stage in stages
