"""Solves a plan's problem again with some variables constrained and all else re-optimized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from autopar.cost.parameters import Storage
from autopar.errors import InternalError
from autopar.explain.average import averaged
from autopar.explain.ways import States
from autopar.ir.blocks import MODES, blocks
from autopar.plans.changes import Difference
from autopar.plans.plan import Plan
from autopar.sharding.compile import best_plan
from autopar.sharding.sharding_problem import ShardingProblem, pose
from autopar.sharding.space import Decisions

ROUNDING = 1e-6
"""Relative tolerance for the rounding to the solver's ticks."""


@dataclass(frozen=True)
class ConstrainedReplanner:
    """A plan and its problem, to be solved again with fewer candidates."""

    plan: Plan
    posed: ShardingProblem

    @cached_property
    def stated(self) -> Plan:
        """The plan priced by the problem, whose hardware may differ from the plan's own."""
        made = self.posed.assembled(self.decisions)
        return replace(
            self.plan,
            estimate=made.estimate,
            objective_s=self.posed.answer(self.decisions).seconds,
            hardware=made.hardware,
            hardware_digest=made.hardware_digest,
            times=made.times,
        )

    @cached_property
    def decisions(self) -> Decisions:
        """The plan's decisions in the solver's form."""
        parameters = {
            node.name: Storage(entry.stored, entry.leaf, entry.regather)
            for node in self.posed.graph.leaves("parameter")
            for entry in [self.plan.parameter[node.target]]
        }
        operators = {n: c for n, c in self.plan.choice.items() if n not in parameters}
        asks = self.posed.priced.candidates.recompute != ("none",)
        modes = {
            block.path: self.plan.recompute_of.get(block.path, "none")
            for block in (blocks(self.posed.graph) if asks else ())
        }
        return Decisions(operators, parameters, modes)

    @cached_property
    def plain(self) -> ShardingProblem:
        """The problem without recomputation, unless the user asked for it."""
        return self._with("none") if self.posed.priced.candidates.recompute == MODES else self.posed

    @cached_property
    def rich(self) -> ShardingProblem:
        """The problem with recomputation, if it has blocks that may be recomputed."""
        is_plain = self.posed.priced.candidates.recompute == ("none",)
        return self._with(*MODES) if is_plain and blocks(self.posed.graph) else self.posed

    def _with(self, *modes: str) -> ShardingProblem:
        posed = self.posed
        return pose(
            posed.graph, posed.prices.mesh, posed.prices.hardware, posed.settings, posed.saved, modes  # type: ignore[arg-type]
        )  # fmt: skip

    def does(self, states: Mapping[str, frozenset[int]]) -> bool:
        """Return whether the plan satisfies these states."""
        priced = self.rich.priced if self._recomputes(states) else self.posed.priced
        every = priced.candidates
        return all(
            every.parameters[name].index(self.decisions.parameters[name]) in kept
            if name in every.parameters
            else every.operators[name].index(self.decisions.operators[name]) in kept
            if name in every.operators
            else every.recompute.index(self.plan.recompute_of.get(name, "none")) in kept
            for name, kept in states.items()
        )

    def best(self, states: States) -> Plan:
        """Return the best plan with these states; raise `InfeasibleError` if there is none."""
        if self._recomputes(states):
            rich = _only(self.rich, states)
            return best_plan(rich, lambda: rich)[1]
        return best_plan(_only(self.plain, states), lambda: _only(self.rich, states))[1]

    def difference(self, made: Plan) -> Difference:
        """Return the difference to another plan per average microbatch, as the solver counts."""
        return averaged(self.stated, self.posed).diff(averaged(made, self.posed))

    def check(self, made: Plan, bound_s: float | None) -> None:
        """Raise `InternalError` if a plan costs less than the lower bound for its alternative."""
        of_the_same = self.plan.bound_nbytes in (None, made.bound_nbytes)
        if bound_s is not None and of_the_same and made.objective_s < bound_s * (1.0 - ROUNDING):
            raise InternalError(
                f"A plan of {made.model} costs {made.objective_s:g} s by the solver's count, below the "
                f"bound of its kind, {bound_s:g} s. This is a defect of autopar: please report it."
            )

    def _recomputes(self, states: Mapping[str, frozenset[int]]) -> bool:
        """Return whether the states constrain the recomputation of blocks."""
        every = self.posed.priced.candidates
        return any(name not in every.operators and name not in every.parameters for name in states)


def _only(posed: ShardingProblem, states: States) -> ShardingProblem:
    return replace(posed, priced=posed.priced.only(states))
