"""Candidates and decisions, and their correspondence to the states of the solver's problem."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from autopar.cost.parameters import Storage
from autopar.ir.blocks import Recompute
from autopar.plans.decisions import OpSharding
from autopar.solver.problem import Assignment, Problem


@dataclass(frozen=True)
class Candidates:
    """The search space: shardings per operator and storages per parameter, both by node name."""

    operators: Mapping[str, tuple[OpSharding, ...]]
    parameters: Mapping[str, tuple[Storage, ...]]
    recompute: tuple[Recompute, ...] = ("none",)
    """The recomputation modes that every block may use."""

    def count(self) -> tuple[int, int]:
        """Return the number of candidates in total, and the most of one operator or parameter."""
        chosen = {**self.operators, **self.parameters}
        sizes = [len(options) for options in chosen.values()]
        return sum(sizes), max(sizes, default=0)


@dataclass(frozen=True)
class Decisions:
    """One sharding per operator, one storage per parameter, and one mode per block with a choice."""

    operators: Mapping[str, OpSharding]
    parameters: Mapping[str, Storage]
    recompute: Mapping[str, Recompute] = field(default_factory=dict)


@dataclass(frozen=True)
class Priced:
    """The problem, and the meaning of the states of its first variables."""

    problem: Problem
    names: tuple[str, ...]
    candidates: Candidates

    def only(self, states: Mapping[str, Collection[int]]) -> Priced:
        """Return the problem with only these states of the named variables."""
        variables = list(self.problem.variables)
        for name, kept in states.items():
            index = self.names.index(name)
            seconds = np.full_like(variables[index].seconds, np.inf)
            seconds[list(kept)] = variables[index].seconds[list(kept)]
            variables[index] = replace(variables[index], seconds=seconds)
        return replace(self, problem=Problem(tuple(variables), self.problem.factors))

    def decisions(self, assignment: Assignment) -> Decisions:
        """Return the decisions of an assignment."""
        operators: dict[str, OpSharding] = {}
        parameters: dict[str, Storage] = {}
        recompute: dict[str, Recompute] = {}
        for name, state in zip(self.names, assignment.states, strict=False):
            if name in self.candidates.parameters:
                parameters[name] = self.candidates.parameters[name][state]
            elif name in self.candidates.operators:
                operators[name] = self.candidates.operators[name][state]
            else:
                recompute[name] = self.candidates.recompute[state]
        return Decisions(operators, parameters, recompute)

    def states(self, decisions: Decisions) -> tuple[int, ...]:
        """Return the states of the first variables for these decisions."""
        every = self.candidates
        return tuple(
            every.parameters[name].index(decisions.parameters[name])
            if name in every.parameters
            else every.operators[name].index(decisions.operators[name])
            if name in every.operators
            else every.recompute.index(decisions.recompute[name])
            for name in self.names
        )
