"""Builds a schedule for given seconds, transfers and memory, instead of for equal stages.

It is a list scheduler: whenever a worker is free, it runs the best action that is ready.

    backwards before forwards (or the reverse, depending on the policy),
    forwards only as far ahead as the policy and the memory allow,
    weight gradients if nothing else is ready and the next action is not too close,
    or if their memory is needed.

Each policy gives a schedule.  Of these and the named schedules, the one with the shortest simulated
step is taken.

Memory cannot cause a deadlock.  After a forward, the worker must be able to finish its microbatches
one after the other, each with the memory that the ones before have released.  So the oldest microbatch
of all can always continue.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.registry import SCHEDULES, build
from autopar.pipeline.schedules.schedule import Actions, Schedule
from autopar.pipeline.simulate.bound import lower_bound
from autopar.pipeline.simulate.greedy import Greedy, Policy
from autopar.pipeline.simulate.memory import peaks as peaks_of
from autopar.pipeline.simulate.simulate import Simulated, simulate
from autopar.pipeline.simulate.values import Costs


@dataclass(frozen=True, slots=True)
class Fitted:
    """A schedule and its simulation, and the policy that made it (None: it is one of the rivals)."""

    schedule: Schedule
    simulated: Simulated
    policy: Policy | None


def fit(
    costs: Costs,
    placement: Sequence[int],
    microbatches: int,
    limits: Sequence[float] | None = None,
    split: bool = True,
    rivals: Iterable[Schedule] | None = None,
) -> Fitted:
    """Return the best schedule found; raise `ScheduleError` if a worker lacks memory for one microbatch.

    placement   each stage's worker
    limits      bytes of each worker; None: no limits
    split       whether backwards may be divided into I and W
    rivals      other schedules of these stages, used if they are better and fit; None: the named
                schedules with the same placement
    """
    workers = max(placement) + 1
    bytes_of = [math.inf] * workers if limits is None else list(limits)
    _check_room(costs, placement, bytes_of)
    least = lower_bound(costs, [(worker,) for worker in placement], microbatches) * (1 + 1e-9)
    best: Fitted | None = None
    for schedule, policy in _tried(costs, placement, microbatches, bytes_of, split, rivals):
        simulated = simulate(schedule, costs)
        if best is None or simulated.step < best.simulated.step * (1 - 1e-12):
            best = Fitted(schedule, simulated, policy)
        if best.simulated.step <= least:
            break
    assert best is not None
    return best


def _tried(
    costs: Costs,
    placement: Sequence[int],
    microbatches: int,
    limits: Sequence[float],
    split: bool,
    rivals: Iterable[Schedule] | None,
) -> Iterator[tuple[Schedule, Policy | None]]:
    if rivals is None:
        rivals = named(costs, placement, microbatches, split)
    for schedule in rivals:
        if not _stands(schedule, placement):
            raise ScheduleError(
                f"{schedule.name} holds stages on {schedule.holders}, not {placement}."
            )
        peaks = zip(peaks_of(schedule, costs.stages), limits, strict=True)
        if all(peak <= limit * (1 + 1e-9) for peak, limit in peaks):
            yield schedule, None
    several = len(set(placement)) < len(placement)
    seen: set[tuple[Actions, ...]] = set()
    for policy in policies(split, several):
        schedule = Greedy(costs, placement, microbatches, limits, policy).run()
        if schedule.workers not in seen:
            seen.add(schedule.workers)
            yield schedule, policy


def named(
    costs: Costs, placement: Sequence[int], microbatches: int, split: bool
) -> Iterator[Schedule]:
    """Yield the synchronous schedules of the registry that have this placement."""
    if any(edge.source > edge.target for edge in costs.edges):
        return
    for name, entry in SCHEDULES.items():
        if entry.asynchronous:
            continue
        try:
            schedule = build(name, max(placement) + 1, microbatches, len(placement))
        except ScheduleError:
            continue
        if _stands(schedule, placement) and schedule.splits_backward <= split:
            yield schedule


def _stands(schedule: Schedule, placement: Sequence[int]) -> bool:
    return schedule.holders == tuple((worker,) for worker in placement)


def policies(split: bool, several: bool) -> Iterator[Policy]:
    """Yield the policies to try; `several`: some worker has several stages to choose from."""
    for ahead, backward_first, deep_first in itertools.product(
        (0.6, 0.8, 1.0, 1.5, 2.0, math.inf), (True, False), (True, False) if several else (True,)
    ):
        yield Policy(ahead, backward_first, deep_first, split=False)
        if split:
            for patience in (0.0, 0.5, 1.0):
                yield Policy(ahead, backward_first, deep_first, True, patience)


def _check_room(costs: Costs, placement: Sequence[int], limits: Sequence[float]) -> None:
    if len(placement) != len(costs.stages):
        raise ScheduleError(f"{len(placement)} stages are placed, {len(costs.stages)} have costs.")
    for worker, limit in enumerate(limits):
        held = [cost for cost, on in zip(costs.stages, placement, strict=True) if on == worker]
        if not held:
            raise ScheduleError(f"Worker {worker} holds no stage; number workers without gaps.")
        least = sum(cost.static + cost.kept for cost in held) + max(cost.working for cost in held)
        if least > limit * (1 + 1e-9):
            raise ScheduleError(
                f"Worker {worker} needs {least:g} bytes for one microbatch, more than its limit of "
                f"{limit:g}; give it fewer stages or more devices."
            )
