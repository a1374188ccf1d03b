"""Gradient reductions that overlap compute: each starts after the last gradient of its stage.

A worker's reductions run one after another, in the order in which its stages become ready.  If several
workers hold a stage, its reduction starts when all of them are available.
"""

from __future__ import annotations

from dataclasses import dataclass

from autopar.pipeline.simulate.program import Program
from autopar.pipeline.simulate.values import Costs


@dataclass(frozen=True, slots=True)
class Reduction:
    """The reduction of one stage's gradients over `workers`, and over the replicas within each."""

    stage: int
    workers: tuple[int, ...]
    start: float
    end: float


def reductions(program: Program, ends: list[float], costs: Costs) -> tuple[Reduction, ...]:
    """Return all reductions, in the order in which stages become ready.

    There are none if the updates are in the lists.
    """
    schedule = program.graph.schedule
    if schedule.asynchronous or not any(stage.reduction for stage in costs.stages):
        return ()
    ready = [0.0] * schedule.stages
    for action, end in zip(program.graph.actions, ends, strict=True):
        if action.kind in ("B", "W") and end > ready[action.stage]:
            ready[action.stage] = end
    free = [0.0] * len(schedule.workers)
    made = []
    for stage in sorted(range(schedule.stages), key=lambda stage: (ready[stage], stage)):
        workers = schedule.holders[stage]
        start = max([ready[stage], *(free[worker] for worker in workers)])
        end = start + costs.stages[stage].reduction
        for worker in workers:
            free[worker] = end
        made.append(Reduction(stage, workers, start, end))
    return tuple(made)
