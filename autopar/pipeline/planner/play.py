"""Fast simulation of a chain of stages, with the same result as the general simulator.

The planner simulates schedules of up to thousands of microbatches.  Building the simulator's general
dependency graph would take longer than simulating.  In a chain, each action waits for at most one
action of another stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from autopar.errors import ScheduleError
from autopar.pipeline.planner.families import Family
from autopar.pipeline.schedules.schedule import Schedule

Lists = tuple[tuple[int, ...], ...]
"""The actions of each stage: 4 m + 0, 1, 2, 3 for F, B, I, W of microbatch m."""
KINDS = {"F": 0, "B": 1, "I": 2, "W": 3}


@dataclass(frozen=True)
class ChainCosts:
    """Per stage, the seconds of F, B, I, W, of the reduction and of the update.

    Per cut, `there` and `back` are the seconds for which a forward and a backward transfer occupy
    their links.
    """

    seconds: tuple[tuple[float, float, float, float], ...]
    there: tuple[float, ...]
    back: tuple[float, ...]
    latency: float
    reduction: tuple[float, ...]
    update: tuple[float, ...]


@lru_cache(maxsize=64)
def lists_of(family: Family, stages: int, microbatches: int) -> Lists:
    """Return a family's schedule as numbers."""
    return numbered(family.make(stages, microbatches))


def numbered(schedule: Schedule) -> Lists:
    """Return the lists of a schedule; raise `ScheduleError` unless worker y runs stage y only."""
    if any(a.stage != w for w, row in enumerate(schedule.workers) for a in row):
        raise ScheduleError(f"{schedule.name} does not give each worker one stage of a chain")
    return tuple(
        tuple(4 * a.microbatch + KINDS[a.kind] for a in row if a.kind in KINDS)
        for row in schedule.workers
    )


def step_of(lists: Lists, costs: ChainCosts) -> float:
    """Return the seconds until all stages have finished their actions, reductions and updates."""
    last = len(lists) - 1
    microbatches = 1 + max(row[-1] for row in lists) // 4
    missing = -1.0
    ready = [
        (
            [0.0 if stage == 0 else missing] * microbatches,
            [0.0 if stage == last else missing] * microbatches,
        )
        for stage in range(last + 1)
    ]
    clock, at, done = [0.0] * (last + 1), [0] * (last + 1), [0.0] * (last + 1)
    busy_there, busy_back = [0.0] * (last + 1), [0.0] * (last + 1)
    waiting = list(range(last, -1, -1))
    while waiting:
        stage = waiting.pop()
        row, seconds, now = lists[stage], costs.seconds[stage], clock[stage]
        forwards, backwards = ready[stage]
        place, sent_there, sent_back = at[stage], False, False
        while place < len(row):
            microbatch, kind = divmod(row[place], 4)
            if kind != 3:
                arrival = forwards[microbatch] if kind == 0 else backwards[microbatch]
                if arrival == missing:
                    break
                if arrival > now:
                    now = arrival
            now += seconds[kind]
            place += 1
            if kind == 0:
                if stage < last:
                    begin = busy_there[stage] if busy_there[stage] > now else now
                    busy_there[stage] = begin = begin + costs.there[stage]
                    ready[stage + 1][0][microbatch] = begin + costs.latency
                    sent_there = True
            elif kind != 3 and stage:
                begin = busy_back[stage] if busy_back[stage] > now else now
                busy_back[stage] = begin = begin + costs.back[stage - 1]
                ready[stage - 1][1][microbatch] = begin + costs.latency
                sent_back = True
        clock[stage], at[stage] = now, place
        done[stage] = now + costs.reduction[stage] + costs.update[stage]
        if sent_there:
            waiting.append(stage + 1)
        if sent_back:
            waiting.append(stage - 1)
    if any(place < len(row) for place, row in zip(at, lists, strict=True)):
        raise ScheduleError("this schedule deadlocks: its workers wait for each other")
    return max(done)


def most_held(row: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return pairs (microbatches in flight, microbatches that await only their weight gradient).

    There is one after each forward, since memory peaks after a forward.
    """
    flying = late = 0
    found: set[tuple[int, int]] = set()
    for number in row:
        kind = number % 4
        if kind == 0:
            flying += 1
            found.add((flying, late))
        elif kind == 1:
            flying -= 1
        elif kind == 2:
            flying, late = flying - 1, late + 1
        else:
            late -= 1
    return tuple(sorted(found))
