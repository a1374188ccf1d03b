"""Checks a schedule.  Errors name the worker, the position in its list and the action."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import COMPUTE, RECEIVES, SENDS, Action
from autopar.pipeline.schedules.collectives import Ties, check_collectives
from autopar.pipeline.schedules.dependencies import dependencies
from autopar.pipeline.schedules.kept import levels
from autopar.pipeline.schedules.rendezvous import run_blocking
from autopar.pipeline.schedules.schedule import Edge, Schedule, chain
from autopar.pipeline.schedules.transfers import check_transfers


def check(
    schedule: Schedule,
    edges: tuple[Edge, ...] | None = None,
    limits: float | Sequence[float] | None = None,
    ties: Ties = (),
) -> None:
    """Raise `ScheduleError` unless

    - every stage runs the forward and backward (B, or I and W) of every microbatch once, on one worker;
    - the lists run to their end under the waits given by `dependencies`;
    - weights have the versions that F, B, I and W state, and are updated after every gradient;
    - no worker keeps more microbatches than its limit (`limits`; each stage's count separately);
    - explicit transfers and collectives are those of the edges, stages and `ties`, at valid positions,
      and the lists run to their end even if every send waits for its receive, and every collective for
      all participants.
    """
    edges = chain(schedule.stages) if edges is None else edges
    _check_edges(schedule, edges)
    _check_actions(schedule)
    _check_complete(schedule)
    dependencies(schedule, edges)
    _check_versions(schedule)
    if limits is not None:
        _check_kept(schedule, limits)
    if schedule.lowered:
        check_transfers(schedule, edges)
        check_collectives(schedule, ties)
        run_blocking(schedule)


def _placed(schedule: Schedule) -> Iterator[tuple[str, int, Action]]:
    for worker, actions in enumerate(schedule.workers):
        for position, action in enumerate(actions):
            where = f"{schedule.name}, worker {worker}, position {position}: {action}"
            yield where, worker, action


def _check_edges(schedule: Schedule, edges: tuple[Edge, ...]) -> None:
    for edge in edges:
        ends = {edge.source, edge.target}
        if len(ends) < 2 or not ends <= set(range(schedule.stages)):
            raise ScheduleError(
                f"{edge} does not join two of the {schedule.stages} stages of {schedule.name}."
            )


def _check_actions(schedule: Schedule) -> None:
    for where, _, action in _placed(schedule):
        if not 0 <= action.stage < schedule.stages:
            raise ScheduleError(f"{where}: there are only {schedule.stages} stages.")
        counts_microbatches = action.kind in COMPUTE | SENDS | RECEIVES
        if counts_microbatches and not 0 <= action.microbatch < schedule.microbatches:
            raise ScheduleError(f"{where}: there are only {schedule.microbatches} microbatches.")
        if (action.peer is not None) != (action.kind in SENDS | RECEIVES):
            raise ScheduleError(f"{where}: transfers name another stage, other actions do not.")
        if action.version and action.kind not in COMPUTE:
            raise ScheduleError(f"{where}: only F, B, I and W use a version of the weights.")
        if action.kind == "U" and not schedule.asynchronous:
            raise ScheduleError(f"{where}: only asynchronous schedules update inside the step.")


def _check_complete(schedule: Schedule) -> None:
    count = Counter((a.kind, a.stage, a.microbatch) for _, _, a in _placed(schedule))
    for where, worker, action in _placed(schedule):
        if action.kind in COMPUTE and count[action.kind, action.stage, action.microbatch] > 1:
            raise ScheduleError(f"{where} occurs more than once.")
        forward_on = schedule.worker_of.get((action.stage, action.microbatch))
        if action.kind in ("B", "I", "W") and forward_on not in (None, worker):
            raise ScheduleError(f"{where}: its forward is on worker {forward_on}.")
    for stage in range(schedule.stages):
        for microbatch in range(schedule.microbatches):
            done = {kind: count[kind, stage, microbatch] for kind in COMPUTE}
            if not done["F"]:
                raise ScheduleError(f"{schedule.name} has no {stage}F{microbatch}.")
            if done["B"] + done["I"] != 1 or done["I"] != done["W"]:
                raise ScheduleError(
                    f"{schedule.name} has {done['B']} {stage}B{microbatch}, {done['I']} "
                    f"{stage}I{microbatch} and {done['W']} {stage}W{microbatch}; a backward is either "
                    f"one B, or one I and one W."
                )


def _check_versions(schedule: Schedule) -> None:
    updates: Counter[tuple[int, int]] = Counter()
    pending: dict[tuple[int, int], str] = {}
    version_of: dict[tuple[int, int], int] = {}
    for where, worker, action in _placed(schedule):
        held = worker, action.stage
        if action.kind == "U":
            if action.microbatch != updates[held]:
                raise ScheduleError(f"{where}: the next update of this stage is {updates[held]}.")
            updates[held] += 1
            if not pending.pop(held, None):
                raise ScheduleError(f"{where}: there is no new gradient.")
        elif action.kind in COMPUTE:
            if action.version > updates[held]:
                raise ScheduleError(f"{where}: only {updates[held]} updates were made before.")
            used = version_of.setdefault((action.stage, action.microbatch), action.version)
            if used != action.version:
                raise ScheduleError(f"{where}: its forward used version {used}.")
            if action.kind in ("B", "W"):
                pending[held] = where
    if schedule.asynchronous and pending:
        raise ScheduleError(f"{next(iter(pending.values()))}: no update follows.")


def _check_kept(schedule: Schedule, limits: float | Sequence[float]) -> None:
    each = [limits] * len(schedule.workers) if isinstance(limits, int | float) else limits
    for worker, (actions, limit) in enumerate(zip(schedule.workers, each, strict=True)):
        for position, action, level in levels(actions):
            if level > limit:
                raise ScheduleError(
                    f"{schedule.name}, worker {worker}, position {position}: after {action} it "
                    f"holds {level:g} microbatches, more than its limit of {limit:g}."
                )
