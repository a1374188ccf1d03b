"""All decisions together: number of stages, cuts, submeshes, ways, microbatches and schedule.

1. Every table (number of microbatches) under every family gets a quick bound; they are tried best first.
2. Of each, the plan of the least estimate is found exactly (`search.py`); every plan met on the way, equal
   stages, and the same stages under the other families are candidates.
3. The best candidates by the estimate are simulated; the least step wins.
4. What no simulation undercuts is the least bound of any table and family (`relaxation.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autopar.errors import InfeasibleError
from autopar.stages.priced import Picked, Priced
from autopar.stages.relaxation import bound_of, quick_bound_of
from autopar.stages.search import least_estimate
from autopar.stages.simulated import Objective, schedule_of, simulated_step
from autopar.stages.stage_plan import PlannedStage, StagePlan
from autopar.stages.table import StageProblem

KEEP = 8
"""Candidates that are simulated."""
ENOUGH = 1e-3
"""Estimates are searched to this share: the simulation differs from them by more."""


@dataclass(frozen=True)
class Candidate:
    """A plan by its estimate; `order` keeps ties stable."""

    estimate_s: float
    order: int
    priced: Priced
    stages: tuple[Picked, ...]


def plan_stages(
    problem: StageProblem,
    objective: Objective | None = None,
    keep: int = KEEP,
    enough: float = ENOUGH,
) -> StagePlan:
    """The plan of the least step found, with its bound; raise where nothing fits."""
    problem.check()
    every = [Priced(problem, table, family) for table in problem.tables for family in problem.families]
    quick = {id(priced): quick_bound_of(priced) for priced in every}
    every.sort(key=lambda priced: quick[id(priced)])
    found = candidates(every, quick, enough)
    play = objective or simulated_step
    steps = [(play(c.priced, c.stages), c.estimate_s, c.order, c) for c in found[:keep]]
    # Families that keep more than the search counts may all fail: then the rest is tried in turn.
    steps += [
        (play(c.priced, c.stages), c.estimate_s, c.order, c)
        for c in found[keep:]
        if not any(math.isfinite(step) for step, *_ in steps)
    ]
    step, _, _, best = min(steps, key=lambda row: row[:3], default=(math.inf, 0, 0, None))
    if best is None or not math.isfinite(step):
        raise InfeasibleError(_why(problem, every))
    bound = 0.0 if objective else least_bound(every, quick)
    return _plan(best, step, min(bound, step), "none" if objective else "relaxation").check()


def candidates(every: Sequence[Priced], quick: dict[int, float], enough: float) -> list[Candidate]:
    """Plans by their estimates, best first."""
    best = math.inf
    pool: dict[tuple[int, tuple[Picked, ...]], Candidate] = {}

    def offer(priced: Priced, stages: tuple[Picked, ...]) -> None:
        key = (id(priced), stages)
        if stages and key not in pool:
            estimate = priced.estimate(stages)
            if math.isfinite(estimate):
                pool[key] = Candidate(estimate, len(pool), priced, stages)

    for priced in every:
        for stages in equal_stages(priced):
            offer(priced, stages)
    best = min((c.estimate_s for c in pool.values()), default=math.inf)
    for priced in every:
        if quick[id(priced)] >= best:
            continue
        estimated, seen = least_estimate(priced, enough, best)
        for stages in seen:
            offer(priced, stages)
        if estimated is not None:
            best = min(best, estimated.estimate_s)
    for other in list(pool.values()):
        for priced in every:
            if priced.table is other.priced.table:
                offer(priced, other.stages)
    return sorted(pool.values(), key=lambda c: (c.estimate_s, c.order))


def equal_stages(priced: Priced) -> Iterator[tuple[Picked, ...]]:
    """As many layers and devices each, one way for all: what people set up by hand."""
    layers = priced.problem.positions - 1
    for number, way in enumerate(priced.table.ways):
        stages, rest = divmod(priced.problem.devices, way.size)
        if rest or stages > priced.most_stages:
            continue
        ends = [layers * (index + 1) // stages for index in range(stages)]
        starts = [0, *ends[:-1]]
        yield tuple((start, end, number) for start, end in zip(starts, ends, strict=True))


def least_bound(every: Sequence[Priced], quick: dict[int, float]) -> float:
    """Over all tables and families, which come by their quick bounds."""
    least = math.inf
    for priced in every:
        if quick[id(priced)] >= least:
            break
        least = min(least, bound_of(priced))
    return least


def _plan(best: Candidate, step: float, bound: float, proof: str) -> StagePlan:
    priced, stages = best.priced, best.stages
    schedule = schedule_of(priced.family, len(stages), priced.table.microbatches)
    made = []
    for index, (start, end, number) in enumerate(stages):
        way, at = priced.table.ways[number], (start, end)
        held = priced.in_flight(len(stages) - index)
        nbytes = way.rest_nbytes[at] + held * way.kept_nbytes[at] + way.working_nbytes[at]
        made.append(
            PlannedStage(
                start, end, way.nodes, way.devices, way.name, float(way.forward_s[at]),
                float(way.input_grad_s[at]), float(way.weight_grad_s[at]), held, float(nbytes),
            )
        )  # fmt: skip
    return StagePlan(
        schedule.name, schedule.microbatches, tuple(made), step, best.estimate_s, bound, proof
    )


def _why(problem: StageProblem, every: Sequence[Priced]) -> str:
    sizes = sorted({way.size for table in problem.tables for way in table.ways})
    if not any(len(list(equal_stages(priced))) for priced in every):
        return (
            f"no choice of submeshes of {sizes} devices fills {problem.devices} devices with at most "
            f"{every[0].most_stages} stages; offer other sizes or more layers to cut at"
        )
    least = min(
        float((way.rest_nbytes + way.kept_nbytes + way.working_nbytes)[way.offered].min())
        for table in problem.tables
        for way in table.ways
        if way.offered.any()
    )
    return (
        f"no plan fits into {problem.memory_nbytes:.4g} bytes per device (the smallest range of layers "
        f"takes {least:.4g}); offer ways that keep less, more devices, or more memory"
    )
