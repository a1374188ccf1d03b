"""The dependency graph of the actions of a schedule, given the edges between its stages.

In addition to its predecessor in its worker's list, an action waits for

    F(s, m)   F of all stages that feed s
    B(s, m)   F(s, m), and B of all stages that s feeds and that send a gradient back; I likewise
    W(s, m)   I(s, m)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import COMPUTE, Action, Kind
from autopar.pipeline.schedules.schedule import Edge, Schedule

Key = tuple[Kind, int, int]


@dataclass(frozen=True, slots=True)
class Need:
    """A dependency on the action at index `source`; `edge` is the edge of the transfer, if any."""

    source: int
    edge: int | None = None


@dataclass(frozen=True, eq=False)
class Dependencies:
    """All F, B, I, W, U of a schedule in one list, worker by worker.

    first      index of each worker's first action, and the total number
    needs      for each action, its dependencies other than its predecessor in the list
    order      a topological order of all actions
    """

    schedule: Schedule
    edges: tuple[Edge, ...]
    actions: tuple[Action, ...]
    worker: tuple[int, ...]
    first: tuple[int, ...]
    needs: tuple[tuple[Need, ...], ...]
    order: tuple[int, ...]


@lru_cache(maxsize=32)
def dependencies(schedule: Schedule, edges: tuple[Edge, ...]) -> Dependencies:
    """Return the graph; raise `ScheduleError` if an action is missing or the lists deadlock."""
    lists = [[a for a in row if a.kind in COMPUTE or a.kind == "U"] for row in schedule.workers]
    actions = [action for row in lists for action in row]
    worker = [number for number, row in enumerate(lists) for _ in row]
    first = [sum(map(len, lists[:number])) for number in range(len(lists) + 1)]
    place: dict[Key, int] = {(a.kind, a.stage, a.microbatch): i for i, a in enumerate(actions)}
    needs = _needs(actions, place, edges)
    return Dependencies(
        schedule,
        edges,
        tuple(actions),
        tuple(worker),
        tuple(first),
        needs,
        _order(schedule, actions, first, needs),
    )


def _needs(
    actions: list[Action], place: dict[Key, int], edges: tuple[Edge, ...]
) -> tuple[tuple[Need, ...], ...]:
    into: dict[int, list[tuple[int, int]]] = defaultdict(list)
    back: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, edge in enumerate(edges):
        into[edge.target].append((number, edge.source))
        if edge.gradient:
            back[edge.source].append((number, edge.target))

    def find(action: Action, stage: int, *kinds: Kind) -> int:
        for kind in kinds:
            found = place.get((kind, stage, action.microbatch))
            if found is not None:
                return found
        missing = Action(kinds[0], stage, action.microbatch)
        raise ScheduleError(f"{action} waits for {missing}, which no worker's list contains.")

    def of(action: Action) -> Iterator[Need]:
        if action.kind == "F":
            for edge, source in into[action.stage]:
                yield Need(find(action, source, "F"), edge)
        elif action.kind in ("B", "I"):
            yield Need(find(action, action.stage, "F"))
            for edge, target in back[action.stage]:
                yield Need(find(action, target, "B", "I"), edge)
        elif action.kind == "W":
            yield Need(find(action, action.stage, "I"))

    return tuple(tuple(of(action)) for action in actions)


def _order(
    schedule: Schedule,
    actions: list[Action],
    first: list[int],
    needs: tuple[tuple[Need, ...], ...],
) -> tuple[int, ...]:
    """Return a topological order: workers run in turns, each as far as its dependencies allow."""
    users: list[list[int]] = [[] for _ in actions]
    waiting = [0] * len(actions)
    for action, its_needs in enumerate(needs):
        waiting[action] = len(its_needs)
        for need in its_needs:
            users[need.source].append(action)
    worker_of = [w for w in range(len(first) - 1) for _ in range(first[w], first[w + 1])]
    at = list(first[:-1])
    order: list[int] = []
    ready = list(range(len(at) - 1, -1, -1))
    while ready:
        worker = ready.pop()
        while at[worker] < first[worker + 1] and not waiting[at[worker]]:
            action = at[worker]
            at[worker] += 1
            order.append(action)
            for user in users[action]:
                waiting[user] -= 1
                other = worker_of[user]
                if not waiting[user] and at[other] == user and other != worker:
                    ready.append(other)
    if len(order) < len(actions):
        stuck = [w for w in range(len(at)) if at[w] < first[w + 1]]
        lines = (_stuck(schedule, actions, needs, at, first, w, set(order)) for w in stuck)
        raise ScheduleError(f"{schedule.name} cannot run to its end:\n" + "\n".join(lines))
    return tuple(order)


def _stuck(
    schedule: Schedule,
    actions: list[Action],
    needs: tuple[tuple[Need, ...], ...],
    at: list[int],
    first: list[int],
    worker: int,
    done: set[int],
) -> str:
    action = actions[at[worker]]
    missing = [str(actions[n.source]) for n in needs[at[worker]] if n.source not in done]
    position = schedule.workers[worker].index(action)
    return f"  worker {worker}, position {position}: {action} waits for {', '.join(missing)}"
