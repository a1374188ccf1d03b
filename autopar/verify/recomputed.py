"""Recomputed values of a plan, cached for the checks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autopar.cost.parameters import Storage
from autopar.ir.blocks import blocks
from autopar.plans.plan import Plan
from autopar.sharding.sharding_problem import ShardingProblem
from autopar.sharding.space import Decisions
from autopar.solver.problem import Assignment


@dataclass(frozen=True)
class RecomputedFigures:
    """A plan, the problem that it solves, and everything recomputed from the plan's decisions."""

    stated: Plan
    posed: ShardingProblem

    @cached_property
    def decisions(self) -> Decisions:
        """The plan's decisions in the solver's form."""
        parameters = {
            node.name: Storage(entry.stored, entry.leaf, entry.regather)
            for node in self.posed.graph.leaves("parameter")
            for entry in [self.stated.parameter[node.target]]
        }
        choices = self.stated.choice.items()
        operators = {name: choice for name, choice in choices if name not in parameters}
        modes = {
            block.path: self.stated.recompute_of.get(block.path, "none")
            for block in blocks(self.posed.graph)
            if self.posed.priced.candidates.recompute != ("none",)
        }
        return Decisions(operators, parameters, modes)

    @cached_property
    def plan(self) -> Plan:
        """The plan assembled from the decisions, which must be candidates."""
        return self.posed.assembled(self.decisions, self.stated.prefetch)

    @cached_property
    def answer(self) -> Assignment:
        """The decisions as a solver's assignment, with its costs."""
        return self.posed.answer(self.decisions)
