"""One graph on one mesh, planned for several numbers of microbatches in flight.

Seconds do not depend on that number, only what fits does.  So the problem is posed once, one plan
without a limit serves all that it fits, and a plan for more in flight fits fewer as well: where one for
few is hardly faster than one for many, the latter serves all between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

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
from autopar.solver.problem import Assignment, Limit
from autopar.utils.messages import argument
from cost_models.hardware import Hardware

MANY = 3
"""Searches of one graph, after which another one has to be worth more."""
COARSE = 2e-2
"""What it has to gain then.  In a deep pipeline one stage of many counts little."""


@dataclass(frozen=True)
class Searched:
    """What a search within the limit found."""

    plan: Plan
    known: WarmStart


class InFlightPlanner:
    """The best plans within the limit of the settings, by microbatches in flight."""

    def __init__(
        self,
        graph: Graph,
        mesh: Mesh,
        hardware: Hardware,
        settings: Settings,
        saved: Mapping[str, Saved],
    ) -> None:
        _refuse_no_blocks(graph, settings)
        self.graph = graph
        self._mesh, self._hardware, self._settings = mesh, hardware, settings
        self._saved = saved
        self._plans: dict[int, tuple[ShardingProblem, Plan]] = {}
        self._searched: dict[int, Searched] = {}
        self._bounds: dict[int, float] = {}

    def limited(self, nbytes: float) -> InFlightPlanner:
        """Within another limit; the problem and the plan without a limit serve both."""
        settings = replace(self._settings, memory_limit=nbytes)
        made = InFlightPlanner(self.graph, self._mesh, self._hardware, settings, self._saved)
        plain = self._plain.asking(settings)
        vars(made).update(_plain=plain, _fastest=self._fastest)
        if "_free" in vars(self):
            vars(made).update(_free=replace(self._free, asked=plain.asked))
        return made

    def plan(self, in_flight: int) -> tuple[ShardingProblem, Plan]:
        """The best plan, and the problem that it answers.  Blocks may be recomputed where the limit
        binds."""
        if in_flight not in self._plans:
            self._plans[in_flight] = self._planned(in_flight)
        return self._plans[in_flight]

    def unlimited(self, in_flight: int) -> tuple[ShardingProblem, Plan] | None:
        """The best plan of all, where it fits: nothing has to be searched for."""
        limit = self._settings.memory_limit
        if limit is not None and self._least_nbytes(in_flight) > limit:
            return None
        free = self._free
        free = free.with_estimate(replace(free.estimate, in_flight=in_flight))
        fits = limit is None or free.estimate.memory_nbytes <= limit
        return (self._plain.flying(in_flight), free) if fits else None

    def _least_nbytes(self, in_flight: int) -> float:
        """Of the best plan of all, the memory that the solver counts: known without the plan."""
        priced = self._plain.priced
        counted = priced.problem.nbytes(self._fastest.states, in_flight)
        return counted + priced.least_working

    def may_take_less(self, seconds: float, in_flight: int) -> bool:
        """Whether the solver's bound leaves room below so many seconds; where there is no limit, yes."""
        if seconds == math.inf or self._settings.memory_limit is None:
            return True
        return self._fastest.bound_s < seconds and self.bound_s(in_flight) < seconds

    def bound_s(self, in_flight: int) -> float:
        """No plan takes less, as the solver counts: known long before the best plan within a limit."""
        if in_flight not in self._bounds:
            self._bounds[in_flight] = self._bound_s(in_flight)
        return self._bounds[in_flight]

    def _bound_s(self, in_flight: int) -> float:
        limit = self._settings.memory_limit
        if limit is None or self.unlimited(in_flight) is not None:
            return self._fastest.bound_s
        richer = self._richer.flying(in_flight)
        counted = Limit(limit - richer.priced.least_working, in_flight)
        return max(self._fastest.bound_s, richer.ready.bound_s(counted))

    def _planned(self, in_flight: int) -> tuple[ShardingProblem, Plan]:
        found, limit = self.unlimited(in_flight), self._settings.memory_limit
        if found is not None or limit is None:
            assert found is not None
            return found
        return self._richer.flying(in_flight), self._limited(in_flight, limit)

    def _limited(self, in_flight: int, limit: float) -> Plan:
        """The best plan that is searched for; by halves, the next one for more in flight known."""
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
        """Whether a plan between may be so much faster that it is worth a search: hardly faster than the
        one for fewer in flight, which a search as good as its own has found."""
        least_gain = FAIR.wide if len(self._searched) < MANY else COARSE
        return more.objective_s > (1.0 + least_gain) * fewer.objective_s

    def _search(self, in_flight: int, limit: float) -> Searched:
        if in_flight not in self._searched:
            more = (
                self._searched[many].known for many in sorted(self._searched) if many > in_flight
            )
            richer, plain = self._richer.flying(in_flight), self._plain.flying(in_flight)
            try:
                found = Searched(*within(richer, plain, limit, next(more, None)))
            except OverLimitError as error:
                found = self._frugal(richer, limit, error)
            self._searched[in_flight] = found
        return self._searched[in_flight]

    def _frugal(self, posed: ShardingProblem, limit: float, error: OverLimitError) -> Searched:
        """The fastest plan of those that take little memory by construction; the bound is that of all
        plans without a limit."""
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
            raise over(smallest, limit)
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
        """What that plan answers."""
        return self._plain.solve()

    @cached_property
    def _richer(self) -> ShardingProblem:
        """What may be answered where the limit binds: every block decides what it computes again."""
        if self._settings.recompute is not None or not blocks(self.graph):
            return self._plain
        return self._plain.recomputing(MODES)


def _flying(plan: Plan, in_flight: int, fewer: Plan) -> Plan:
    """A plan for more in flight as one for `in_flight`; no plan for these is faster than what the bound
    says of `fewer`."""
    flying = plan.with_estimate(replace(plan.estimate, in_flight=in_flight))
    return replace(
        flying,
        bound_s=min(fewer.bound_s, plan.objective_s),
        proof=fewer.proof,
        bound_nbytes=fewer.bound_nbytes,
    )


def _refuse_no_blocks(graph: Graph, settings: Settings) -> None:
    asked = settings.recompute or "none"
    if asked != "none" and settings.first and not blocks(graph):
        near = "".join(f" {path} {why}." for path, why in no_blocks(graph)[:1])
        raise InputError(
            f"{argument('recompute', asked)} finds nothing to recompute in {graph.name}: a block is "
            f"one of several numbered modules (such as layers.0), of {FEWEST} operators at least, that "
            f"runs once and in one piece.{near} Leave {argument('recompute')} out."
        )
