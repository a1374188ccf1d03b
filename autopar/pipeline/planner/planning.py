"""Chooses the number of stages, cuts, submeshes, ways, microbatches and schedule jointly.

1. Every table (one per number of microbatches) gets a quick lower bound under every schedule family.
   The tables of a family are searched in order of their bounds, until the next bound is no better than
   the best known candidate.
2. The candidates of a table are the plan with the least aim and those found on the way to it
   (`search.py`), plans with short periods (`period.py`), equal stages, and the best plans of the
   families tried earlier.
3. The candidates of a family with the best estimates are simulated.  The shortest step overall wins.
4. The lower bound on every simulated step is the least bound of any table and family
   (`relaxation.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from autopar.errors import InfeasibleError
from autopar.pipeline.planner.period import bracketed, possible
from autopar.pipeline.planner.priced import Picked, Priced, price
from autopar.pipeline.planner.relaxation import flush_bound_of, makespan_bound_of, quick_bound_of
from autopar.pipeline.planner.search import least_aim
from autopar.pipeline.planner.simulated import Objective, simulated_step
from autopar.pipeline.planner.stage_plan import PlannedStage, StagePlan
from autopar.pipeline.planner.table import StageProblem

KEEP = 3
"""Number of candidates per family that are simulated."""
ENOUGH = 1e-3
"""Relative tolerance of the search for the least aim; the simulation differs from aims by more."""
CLOSE = 0.005
"""Relative gap to the best step below which a bound is not tightened."""
HALVINGS = 5
"""Bisection steps on the gap between a bound and a known estimate."""


@dataclass(frozen=True)
class Candidate:
    """A plan with its estimated step; `order` breaks ties deterministically."""

    estimate_s: float
    order: int
    priced: Priced
    stages: tuple[Picked, ...]


@dataclass(frozen=True, eq=False)
class Planner:
    """A planner for one problem; results that several queries need are computed once."""

    problem: StageProblem

    @cached_property
    def every(self) -> list[Priced]:
        """Every table, priced under every schedule family."""
        return price(self.problem.check())

    @cached_property
    def quick_bounds(self) -> tuple[float, ...]:
        """A quick lower bound on the step for each entry of `every`."""
        return tuple(quick_bound_of(priced) for priced in self.every)

    def is_hopeless(self, step: float) -> bool:
        """Return whether it is proven that no plan takes less than `step` seconds.

        This is much faster than planning.
        """
        near = sorted((bound, at) for at, bound in enumerate(self.quick_bounds) if bound < step)
        return all(
            makespan_bound_of(self.every[at], step) >= step
            or possible(self.every[at], step) is None
            or flush_bound_of(self.every[at], step) >= step
            for _, at in near
        )

    def plan(self, objective: Objective | None = None, keep: int = KEEP) -> StagePlan:
        """Return the plan with the shortest step found, with its bound.

        Raises `InfeasibleError` if nothing fits.  With a custom objective there is no bound: the
        relaxation bounds the simulator's steps.
        """
        every, bounds = self.every, list(self.quick_bounds)
        pools: list[Pool] = []
        best: Candidate | None = None
        step = math.inf
        for family in self.problem.families:
            members = [at for at, priced in enumerate(every) if priced.family is family]
            pool = Pool(members, every, keep)
            pool.fill(bounds, math.inf if objective else step)
            for other in pools:
                pool.take(other)
            pools.append(pool)
            found, seconds = pool.best(objective or simulated_step)
            if seconds < step:
                best, step = found, seconds
        if best is None:
            raise InfeasibleError(_why(self.problem, every))
        if objective is not None:
            return _plan(best, step, 0.0, "none").check()
        return _plan(best, step, _tightened(every, bounds, step), "relaxation").check()


def plan_stages(
    problem: StageProblem, objective: Objective | None = None, keep: int = KEEP
) -> StagePlan:
    """Return the best plan of a problem; see `Planner.plan`."""
    return Planner(problem).plan(objective, keep)


def is_hopeless(problem: StageProblem, step: float) -> bool:
    """Return whether no plan takes less than `step` seconds; see `Planner.is_hopeless`."""
    return Planner(problem).is_hopeless(step)


def _tightened(every: Sequence[Priced], bounds: list[float], step: float) -> float:
    """Return the least bound, after tightening the bounds of the most promising tables."""
    left = set(range(len(every)))
    while True:
        least = min(range(len(every)), key=lambda at: bounds[at])
        if least not in left or bounds[least] * (1 + CLOSE) >= step:
            return min(step, bounds[least])
        left.remove(least)
        better = max(makespan_bound_of(every[least], step), flush_bound_of(every[least], step))
        bounds[least] = max(bounds[least], better)


@dataclass
class Pool:
    """The candidates of one family; estimates of different families are not comparable."""

    members: Sequence[int]
    every: Sequence[Priced]
    keep: int
    known: dict[tuple[int, tuple[Picked, ...]], Candidate] = field(default_factory=dict)
    least_s: float = math.inf

    def offer(self, priced: Priced, stages: tuple[Picked, ...]) -> None:
        """Add a plan if it fits and is new."""
        key = (id(priced), stages)
        if key not in self.known:
            estimate = priced.estimate(stages)
            if estimate < math.inf:
                self.known[key] = Candidate(estimate, len(self.known), priced, stages)
                self.least_s = min(self.least_s, estimate)

    def fill(self, bounds: list[float], step: float) -> None:
        """Find candidates that could beat a known step, and tighten the bounds of their tables."""
        for at in self.members:
            for stages in equal_stages(self.every[at]):
                self.offer(self.every[at], stages)
        for at in sorted(self.members, key=lambda at: bounds[at]):
            if bounds[at] >= min(self.least_s, step):
                break
            bounds[at] = max(bounds[at], self._search(self.every[at], step))

    def _search(self, priced: Priced, step: float) -> float:
        low = makespan_bound_of(priced, min(self.least_s, step))
        if low >= min(self.least_s, step):
            return low
        found = least_aim(priced, ENOUGH, self.least_s)
        for stages in found.seen if found else ():
            self.offer(priced, stages)
        if not found or low >= min(self.least_s, step):
            return low
        bound, plans = bracketed(priced, low, min(self.least_s, step), HALVINGS)
        for stages in plans:
            self.offer(priced, stages)
        return bound

    def take(self, other: Pool) -> None:
        """Add the best plans of another family, priced under this one."""
        for candidate in other.ranked()[: self.keep]:
            for at in self.members:
                if self.every[at].table is candidate.priced.table:
                    self.offer(self.every[at], candidate.stages)

    def ranked(self) -> list[Candidate]:
        """Return the candidates, best first."""
        return sorted(self.known.values(), key=lambda c: (c.estimate_s, c.order))

    def best(self, objective: Objective) -> tuple[Candidate | None, float]:
        """Return the candidate with the shortest step among the first `keep`, and that step.

        More candidates are tried only while none fits.
        """
        best, least = None, math.inf
        for index, candidate in enumerate(self.ranked()):
            if index >= self.keep and best is not None:
                break
            step = objective(candidate.priced, candidate.stages)
            if step < least:
                best, least = candidate, step
        return best, least


def equal_stages(priced: Priced) -> Iterator[tuple[Picked, ...]]:
    """Yield plans whose stages have equal layers and devices and one way, as commonly set up by hand."""
    layers = priced.problem.positions - 1
    for number in sorted(priced.places):
        way = priced.table.ways[number]
        stages, rest = divmod(priced.problem.devices, way.size)
        if rest or stages > priced.most_stages:
            continue
        ends = [layers * (index + 1) // stages for index in range(stages)]
        yield tuple((start, end, number) for start, end in zip([0, *ends], ends, strict=False))


def _plan(best: Candidate, step: float, bound: float, proof: str) -> StagePlan:
    priced, stages = best.priced, best.stages
    made = []
    for index, (start, end, number) in enumerate(stages):
        way, at = priced.table.ways[number], (start, end)
        held = priced.in_flight(len(stages) - index)
        nbytes = way.rest_nbytes[at] + held * way.kept_nbytes[at] + way.working_nbytes[at]
        split_s = way.splitting_s[at] if priced.family.splits else 0.0
        made.append(
            PlannedStage(
                start, end, way.nodes, way.devices, way.name, float(way.forward_s[at]),
                float(way.input_grad_s[at] + split_s), float(way.weight_grad_s[at]), held, float(nbytes),
            )
        )  # fmt: skip
    return StagePlan(
        priced.family.name, priced.table.microbatches, tuple(made), step, best.estimate_s, bound,
        proof,
    )  # fmt: skip


def _why(problem: StageProblem, every: Sequence[Priced]) -> str:
    sizes = sorted({way.size for table in problem.tables for way in table.ways})
    if not any(len(list(equal_stages(priced))) for priced in every):
        return (
            f"no choice of submeshes of {sizes} devices fills {problem.devices} devices with at most "
            f"{every[0].most_stages} stages; offer other sizes or more layers to cut at"
        )
    least = min(
        (
            float((way.rest_nbytes + way.kept_nbytes + way.working_nbytes)[way.offered].min())
            for table in problem.tables
            for way in table.ways
            if way.offered.any()
        ),
        default=None,
    )
    if least is None:
        return "no way offers any range of layers; every time in the tables is infinite"
    if (layer := _missing(problem)) is not None:
        return f"no way offers a range with layer {layer}; its times in the tables are infinite"
    return (
        f"no plan fits into {problem.memory_nbytes:.4g} bytes per device, though the smallest range of "
        f"layers takes {least:.4g}; offer ways that keep less, more devices, or more memory"
    )


def _missing(problem: StageProblem) -> int | None:
    """Return a layer that no finite range of any table contains, or None."""
    offered = np.any([way.offered for table in problem.tables for way in table.ways], axis=0)
    for layer in range(problem.positions - 1):
        if not offered[: layer + 1, layer + 1 :].any():
            return layer
    return None
