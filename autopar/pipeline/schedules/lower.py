"""Adds explicit transfers and collectives to a schedule, in an order that cannot deadlock.

All actions are put in one global order: by their start if F, I and W take one second each and
transfers none.  A transfer comes as soon as its data is available, before actions that start at the
same time.  Each worker's list is the global order restricted to its own actions.  So whatever a worker
waits for is earlier in the global order, and the earliest pending action can always run.  There is no
deadlock, even if sends wait for their receives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import COMPUTE, Action, Kind
from autopar.pipeline.schedules.dependencies import Dependencies, dependencies
from autopar.pipeline.schedules.schedule import Edge, Schedule, chain
from autopar.pipeline.schedules.transfers import crossings

SECONDS: dict[Kind, float] = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0, "U": 0.0}
TRANSFER, COLLECTIVE, COMPUTATION = 0, 1, 2
"""The order of events at the same time."""


@dataclass(frozen=True, slots=True)
class Event:
    """A simultaneous event on one or several workers: pairs (worker, action)."""

    key: tuple[float, int, int, int]
    actions: tuple[tuple[int, Action], ...]


def lower(
    schedule: Schedule,
    edges: tuple[Edge, ...] | None = None,
    ties: Sequence[Sequence[int]] = (),
) -> Schedule:
    """Add SEND and RECV for every edge between workers, REDUCE for every stage, TIE for `ties`.

    `ties` are groups of stages that share weights; a TIE has the lowest stage of its group.
    """
    graph = dependencies(schedule, chain(schedule.stages) if edges is None else edges)
    starts, ends = _times(graph)
    events = [
        *(Event((start, COMPUTATION, i, 0), ((graph.worker[i], graph.actions[i]),))
          for i, start in enumerate(starts)),
        *_transfers(graph, ends),
        *_collectives(graph, starts, ends, ties),
    ]  # fmt: skip
    lists: list[list[Action]] = [[] for _ in schedule.workers]
    for event in sorted(events, key=lambda event: event.key):
        for worker, action in event.actions:
            lists[worker].append(action)
    return replace(schedule, workers=tuple(map(tuple, lists)))


def without_transfers(schedule: Schedule) -> Schedule:
    """Return the schedule with only F, B, I, W and U."""
    lists = (
        tuple(a for a in actions if a.kind in COMPUTE or a.kind == "U")
        for actions in schedule.workers
    )
    return replace(schedule, workers=tuple(lists))


def _times(graph: Dependencies) -> tuple[list[float], list[float]]:
    starts, ends = [0.0] * len(graph.actions), [0.0] * len(graph.actions)
    free = [0.0] * len(graph.schedule.workers)
    for action in graph.order:
        worker = graph.worker[action]
        starts[action] = max([free[worker], *(ends[need.source] for need in graph.needs[action])])
        ends[action] = free[worker] = starts[action] + SECONDS[graph.actions[action].kind]
    return starts, ends


def _transfers(graph: Dependencies, ends: list[float]) -> Iterator[Event]:
    for crossing in crossings(graph):
        key = (ends[crossing.source], TRANSFER, crossing.source, crossing.target)
        yield Event(key, ((crossing.sender, crossing.send), (crossing.receiver, crossing.take)))


def _collectives(
    graph: Dependencies, starts: list[float], ends: list[float], ties: Sequence[Sequence[int]]
) -> Iterator[Event]:
    """Yield REDUCE when all gradients of a stage are complete, then TIE.

    In asynchronous lists, yield one REDUCE before each U.
    """
    schedule = graph.schedule
    groups = _groups(schedule, ties)
    if schedule.asynchronous:
        for number, action in enumerate(graph.actions):
            if action.kind == "U":
                reduce = Action("REDUCE", action.stage, action.microbatch)
                yield Event(
                    (starts[number], COLLECTIVE, number, 0), ((graph.worker[number], reduce),)
                )
        return
    ready = [0.0] * schedule.stages
    for action, end in zip(graph.actions, ends, strict=True):
        ready[action.stage] = max(ready[action.stage], end)
    for stage, workers in enumerate(schedule.holders):
        reduce = Action("REDUCE", stage, 0)
        yield Event((ready[stage], COLLECTIVE, stage, 0), tuple((w, reduce) for w in workers))
    for group in groups:
        workers = tuple(sorted({w for stage in group for w in schedule.holders[stage]}))
        tie = Action("TIE", group[0], 0)
        when = max(ready[stage] for stage in group)
        key = (when, COLLECTIVE, schedule.stages + group[0], 0)
        yield Event(key, tuple((worker, tie) for worker in workers))


def _groups(schedule: Schedule, ties: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    groups = [tuple(sorted(set(group))) for group in ties]
    if groups and schedule.asynchronous:
        raise ScheduleError(
            f"{schedule.name} updates each stage at its own time, so weights that stages "
            f"{groups[0]} share would diverge; take a synchronous schedule."
        )
    for group in groups:
        if len(group) < 2 or not 0 <= group[0] <= group[-1] < schedule.stages:
            raise ScheduleError(f"Stages {group} of {schedule.name} cannot share weights.")
    if len({group[0] for group in groups}) < len(groups):
        raise ScheduleError(
            f"Groups {groups} of tied stages begin with the same stage; make them one group."
        )
    return groups
