"""Plans one graph on one mesh for several numbers of microbatches in flight.

The number changes the memory of a plan, not its seconds.  So the problem is posed once, and the best
plan without a limit serves every number with which it fits.  A plan that fits with more microbatches in
flight also fits with fewer.  If a plan for few is hardly faster than one for many, the latter serves all
numbers in between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autopar.errors import InputError, OverLimitError
from autopar.ir.blocks import FEWEST, MODES, blocks, no_blocks
from autopar.ir.graph import Graph, Saved
from autopar.ir.mesh import Mesh
from autopar.plans.plan import Plan
from autopar.sharding.frugal import frugal
from autopar.sharding.limited import WarmStart, over, within
from autopar.sharding.sharding_problem import Settings, ShardingProblem, pose
from autopar.sharding.uniform import shortest
from autopar.solver.gap_tolerance import FAIR
from autopar.solver.problem import Assignment
from autopar.utils.messages import argument
from cost_models.hardware import Hardware

SURELY = 1.1
"""A plan of so many times the limit, as the solver counts, is not made to see that it does not fit."""
MANY = 3
"""Number of searches for one graph after which another one must promise a larger gain."""
COARSE = 2e-2
"""The relative gain that it must promise then.  In a deep pipeline one stage of many counts little."""


@dataclass(frozen=True)
class Searched:
    """The result of a search within the limit."""

    plan: Plan
    known: WarmStart


class InFlightPlanner:
    """The best plans within the memory limit of the settings, by number of microbatches in flight."""

    def __init__(
        self,
        graph: Graph,
        mesh: Mesh,
        hardware: Hardware,
        settings: Settings,
        saved: Mapping[str, Saved],
    ) -> None:
        refuse_no_blocks(graph, settings)
        self.graph = graph
        self._mesh, self._hardware, self._settings = mesh, hardware, settings
        self._saved = saved
        self._plans: dict[int, tuple[ShardingProblem, Plan]] = {}
        self._searched: dict[int, Searched] = {}
        self._bounds: dict[int, float] = {}

    def limited(self, nbytes: float) -> InFlightPlanner:
        """Return a planner for another limit; it shares the problem and the plan without a limit."""
        settings = replace(self._settings, memory_limit=nbytes)
        made = InFlightPlanner(self.graph, self._mesh, self._hardware, settings, self._saved)
        plain = self._plain.asking(settings)
        vars(made).update(_plain=plain, _fastest=self._fastest)
        if "_free" in vars(self):
            vars(made).update(_free=replace(self._free, asked=plain.asked))
        return made

    def plan(self, in_flight: int) -> tuple[ShardingProblem, Plan]:
        """Return the problem and its best plan.  Blocks may be recomputed if the limit binds."""
        if in_flight not in self._plans:
            self._plans[in_flight] = self._planned(in_flight)
        return self._plans[in_flight]

    def unlimited(self, in_flight: int) -> tuple[ShardingProblem, Plan] | None:
        """Return the problem and its best plan without a limit, if that fits; no search is needed."""
        limit = self._settings.memory_limit
        if limit is not None and self._counted_nbytes(in_flight) > SURELY * limit:
            return None
        free = self._free
        free = free.with_estimate(replace(free.estimate, in_flight=in_flight))
        fits = limit is None or free.estimate.memory_nbytes <= limit
        return (self._plain.flying(in_flight), free) if fits else None

    def _counted_nbytes(self, in_flight: int) -> float:
        """Return the peak of the best plan without a limit, as the solver counts it."""
        course = self._plain.priced.problem.course(self._fastest.states, in_flight - 1)
        return float(course.max(initial=0.0))

    def may_take_less(self, seconds: float, in_flight: int) -> bool:
        """Return whether the lower bound admits a plan below so many seconds; true without a limit."""
        if seconds == math.inf or self._settings.memory_limit is None:
            return True
        return self._fastest.bound_s < seconds and self.bound_s(in_flight) < seconds

    def bound_s(self, in_flight: int) -> float:
        """Return the solver's lower bound on the seconds of all plans; no plan is made for it."""
        if in_flight not in self._bounds:
            self._bounds[in_flight] = self._bound_s(in_flight)
        return self._bounds[in_flight]

    def _bound_s(self, in_flight: int) -> float:
        limit = self._settings.memory_limit
        if limit is None or self.unlimited(in_flight) is not None:
            return self._fastest.bound_s
        over_time = self._richer.flying(in_flight).over_time()
        most = np.full(over_time.problem.times, limit)
        return max(self._fastest.bound_s, over_time.bound_s(most))

    def _planned(self, in_flight: int) -> tuple[ShardingProblem, Plan]:
        found, limit = self.unlimited(in_flight), self._settings.memory_limit
        if found is not None or limit is None:
            assert found is not None
            return found
        return self._richer.flying(in_flight), self._limited(in_flight, limit)

    def _limited(self, in_flight: int, limit: float) -> Plan:
        """Return the best plan of a search, or one for more in flight that is hardly slower.

        The search bisects between the numbers in flight that were searched before.
        """
        above = min((many for many in self._searched if many > in_flight), default=None)
        if above is None or in_flight == 1 or in_flight in self._searched:
            return self._search(in_flight, limit).plan
        below = max((few for few in self._searched if few < in_flight), default=1)
        while self._is_worth_more(self._search(below, limit).plan, self._searched[above].plan):
            middle = (below + above) // 2
            if middle in (below, in_flight):
                return self._search(in_flight, limit).plan
            below, above = (middle, above) if middle < in_flight else (below, middle)
            self._search(middle, limit)
        return _flying(self._searched[above].plan, in_flight, self._searched[below].plan)

    def _is_worth_more(self, fewer: Plan, more: Plan) -> bool:
        """Return whether a plan for a number in between may be fast enough to be worth a search.

        It can hardly be faster than the plan for fewer in flight, which an equally good search found.
        """
        least_gain = FAIR.wide if len(self._searched) < MANY else COARSE
        return more.objective_s > (1.0 + least_gain) * fewer.objective_s

    def _search(self, in_flight: int, limit: float) -> Searched:
        if in_flight not in self._searched:
            more = (
                self._searched[many].known for many in sorted(self._searched) if many > in_flight
            )
            richer = self._richer.flying(in_flight)
            try:
                found = Searched(*within(richer, limit, next(more, None)))
            except OverLimitError as error:
                found = self._frugal(richer, limit, error)
            self._searched[in_flight] = found
        return self._searched[in_flight]

    def _frugal(self, posed: ShardingProblem, limit: float, error: OverLimitError) -> Searched:
        """Return the fastest plan of those that need little memory by construction.

        Its bound is that of all plans without a limit.
        """
        best: Searched | None = None
        free, smallest = self._free, error.least_nbytes
        for decisions in frugal(
            self.graph, self._mesh, self._hardware, self._settings, self._saved
        ):
            answer = replace(posed.answer(decisions), bound_s=free.bound_s, proof=free.proof)
            plan = posed.plan(answer)
            smallest = min(smallest, plan.estimate.memory_nbytes)
            if plan.estimate.memory_nbytes <= limit and (
                best is None or plan.objective_s < best.plan.objective_s
            ):
                best = Searched(plan, WarmStart(answer))
        if best is None:
            raise error if smallest == error.least_nbytes else over(smallest, limit)
        return best

    @cached_property
    def _plain(self) -> ShardingProblem:
        return pose(self.graph, self._mesh, self._hardware, self._settings, self._saved)

    @cached_property
    def _free(self) -> Plan:
        """The best plan without a limit."""
        return shortest(self._plain, self._plain.plan(self._fastest))

    @cached_property
    def _fastest(self) -> Assignment:
        """The best assignment without a limit."""
        return self._plain.solve()

    @cached_property
    def _richer(self) -> ShardingProblem:
        """The problem if the limit binds: blocks may choose a mode, unless the settings fix it."""
        if self._settings.recompute is not None or not blocks(self.graph):
            return self._plain
        return self._plain.recomputing(MODES)


def _flying(plan: Plan, in_flight: int, fewer: Plan) -> Plan:
    """Return a plan for more microbatches in flight as one for `in_flight`.

    The bound of `fewer`, a plan for fewer in flight, holds for it too.
    """
    flying = plan.with_estimate(replace(plan.estimate, in_flight=in_flight))
    return replace(
        flying,
        bound_s=min(fewer.bound_s, plan.objective_s),
        proof=fewer.proof,
        bound_nbytes=fewer.bound_nbytes,
    )


def refuse_no_blocks(graph: Graph, settings: Settings) -> None:
    """Raise `InputError` if the user asks for recomputation and the model has no block."""
    asked = settings.recompute or "none"
    if asked != "none" and settings.first and not blocks(graph):
        near = "".join(f" {path} {why}." for path, why in no_blocks(graph)[:1])
        raise InputError(
            f"{argument('recompute', asked)} finds nothing to recompute in {graph.name}: a block is "
            f"one of several numbered modules (such as layers.0), of {FEWEST} operators at least, that "
            f"runs once and in one piece.{near} Leave {argument('recompute')} out."
        )
