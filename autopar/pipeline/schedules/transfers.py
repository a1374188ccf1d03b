"""Transfers between workers: which are needed, and whether a schedule's lists contain exactly these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import RECEIVES, SENDS, Action, Kind
from autopar.pipeline.schedules.dependencies import Dependencies, dependencies
from autopar.pipeline.schedules.schedule import Edge, Schedule

Place = tuple[int, int]
"""A worker and a position in its list."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A needed transfer: `send` after action `source` of the graph, `take` before action `target`."""

    sender: int
    source: int
    send: Action
    receiver: int
    target: int
    take: Action


def check_transfers(schedule: Schedule, edges: tuple[Edge, ...]) -> None:
    """Raise `ScheduleError` unless each transfer is there once, on the right workers and positions."""
    places: dict[Action, list[Place]] = {}
    for worker, actions in enumerate(schedule.workers):
        for position, action in enumerate(actions):
            if action.kind in SENDS | RECEIVES:
                places.setdefault(action, []).append((worker, position))
    where = {
        (worker, action): position
        for worker, actions in enumerate(schedule.workers)
        for position, action in enumerate(actions)
    }
    graph = dependencies(schedule, edges)
    expected = [
        each
        for c in crossings(graph)
        for each in (
            (c.sender, graph.actions[c.source], c.send, True),
            (c.receiver, graph.actions[c.target], c.take, False),
        )
    ]
    for worker, neighbour, transfer, comes_first in expected:
        found = places.pop(transfer, [])
        if [place[0] for place in found] != [worker]:
            raise ScheduleError(
                f"{schedule.name}, worker {worker}: {transfer} must occur once; it is at "
                f"{found or 'no place'} (worker, position)."
            )
        position = found[0][1]
        if (where[worker, neighbour] < position) != comes_first:
            order = "after" if comes_first else "before"
            raise ScheduleError(
                f"{schedule.name}, worker {worker}, position {position}: {transfer} must come "
                f"{order} {neighbour}."
            )
    for transfer, (place, *_) in places.items():
        raise ScheduleError(
            f"{schedule.name}, worker {place[0]}, position {place[1]}: no edge between workers "
            f"needs {transfer}."
        )


def crossings(graph: Dependencies) -> Iterator[Crossing]:
    """Yield the crossings: one per edge between workers, microbatch and direction."""
    for user, needs in enumerate(graph.needs):
        for need in needs:
            sender, receiver = graph.worker[need.source], graph.worker[user]
            if need.edge is None or sender == receiver:
                continue
            source, target = graph.actions[need.source], graph.actions[user]
            kinds: tuple[Kind, Kind] = ("SEND_F", "RECV_F")
            if target.kind != "F":
                kinds = ("SEND_B", "RECV_B")
            send = Action(kinds[0], source.stage, source.microbatch, target.stage)
            take = Action(kinds[1], target.stage, target.microbatch, source.stage)
            yield Crossing(sender, need.source, send, receiver, user, take)
