"""All decisions together: number of stages, cuts, submeshes, ways, microbatches and schedule.

1. Every table (number of microbatches) under every family gets a quick bound; they are tried best first,
   until the next one's bound is no better than what is known.
2. Of each, candidates are the plan of the least aim and what was met on the way (`search.py`), plans of
   short periods (`period.py`), equal stages, and the same stages under the other families.
3. The best candidates by their estimates are simulated; the least step wins.
4. What no simulation undercuts is the least bound of any table and family (`relaxation.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from autopar.errors import InfeasibleError
from autopar.stages.period import bracketed
from autopar.stages.priced import Picked, Priced, price
from autopar.stages.relaxation import makespan_bound_of, quick_bound_of
from autopar.stages.search import least_aim
from autopar.stages.simulated import Objective, simulated_step
from autopar.stages.stage_plan import PlannedStage, StagePlan
from autopar.stages.table import StageProblem

KEEP = 5
"""Candidates that are simulated."""
ENOUGH = 1e-3
"""Aims are searched to this share: the simulation differs from them by more."""
HALVINGS = 5
"""Of the gap between a bound and a known estimate."""


@dataclass(frozen=True)
class Candidate:
    """A plan by its estimate; `order` keeps ties stable."""

    estimate_s: float
    order: int
    priced: Priced
    stages: tuple[Picked, ...]


def plan_stages(
    problem: StageProblem, objective: Objective | None = None, keep: int = KEEP
) -> StagePlan:
    """The plan of the least step found, with its bound; raise where nothing fits.

    With an objective of one's own there is no bound: the relaxation speaks of the simulator.
    """
    pool = Pool(price(problem.check()))
    bound = pool.search()
    best, step = _best(pool.ranked(), objective or simulated_step, keep)
    if best is None:
        raise InfeasibleError(_why(problem, pool.every))
    if objective is not None:
        return _plan(best, step, 0.0, "none").check()
    return _plan(best, step, min(bound, step), "relaxation").check()


@dataclass
class Pool:
    """Candidates of all tables and families."""

    every: Sequence[Priced]
    known: dict[tuple[int, tuple[Picked, ...]], Candidate] = field(default_factory=dict)
    least_s: float = math.inf

    def offer(self, priced: Priced, stages: tuple[Picked, ...]) -> None:
        """Take a plan in, if it fits and is new."""
        key = (id(priced), stages)
        if key not in self.known:
            estimate = priced.estimate(stages)
            if estimate < math.inf:
                self.known[key] = Candidate(estimate, len(self.known), priced, stages)
                self.least_s = min(self.least_s, estimate)

    def search(self) -> float:
        """Find candidates; what is returned is below every plan's step."""
        quick = [(quick_bound_of(priced), at) for at, priced in enumerate(self.every)]
        for priced in self.every:
            for stages in equal_stages(priced):
                self.offer(priced, stages)
        bound = math.inf
        for least, at in sorted(quick):
            if least >= self.least_s:
                # What follows has no lower bound than this one.
                bound = min(bound, least)
                break
            bound = min(bound, max(least, self._search(self.every[at])))
        self._exchange()
        return bound

    def _search(self, priced: Priced) -> float:
        found = least_aim(priced, ENOUGH, self.least_s)
        for stages in found.seen if found else ():
            self.offer(priced, stages)
        low = makespan_bound_of(priced)
        if low >= self.least_s:
            return low
        bound, plans = bracketed(priced, low, self.least_s, HALVINGS)
        for stages in plans:
            self.offer(priced, stages)
        return bound

    def _exchange(self) -> None:
        """Every plan under the other families of its table."""
        for other in list(self.known.values()):
            for priced in self.every:
                if priced.table is other.priced.table and priced is not other.priced:
                    self.offer(priced, other.stages)

    def ranked(self) -> list[Candidate]:
        """Best first."""
        return sorted(self.known.values(), key=lambda c: (c.estimate_s, c.order))


def equal_stages(priced: Priced) -> Iterator[tuple[Picked, ...]]:
    """As many layers and devices each, one way for all: what people set up by hand."""
    layers = priced.problem.positions - 1
    for number in sorted(priced.places):
        way = priced.table.ways[number]
        stages, rest = divmod(priced.problem.devices, way.size)
        if rest or stages > priced.most_stages:
            continue
        ends = [layers * (index + 1) // stages for index in range(stages)]
        yield tuple((start, end, number) for start, end in zip([0, *ends], ends, strict=False))


def _best(
    found: Sequence[Candidate], objective: Objective, keep: int
) -> tuple[Candidate | None, float]:
    """The least step of the first `keep` candidates; more are tried only while none fits."""
    best, least = None, math.inf
    for index, candidate in enumerate(found):
        if index >= keep and best is not None:
            break
        step = objective(candidate.priced, candidate.stages)
        if step < least:
            best, least = candidate, step
    return best, least


def _plan(best: Candidate, step: float, bound: float, proof: str) -> StagePlan:
    priced, stages = best.priced, best.stages
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
        float((way.rest_nbytes + way.kept_nbytes + way.working_nbytes)[way.offered].min())
        for table in problem.tables
        for way in table.ways
        if way.offered.any()
    )
    return (
        f"no plan fits into {problem.memory_nbytes:.4g} bytes per device (the smallest range of layers "
        f"takes {least:.4g}); offer ways that keep less, more devices, or more memory"
    )
