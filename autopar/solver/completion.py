"""The rest of an assignment of which the first states are given: what a plan's decisions cost.

The last variables of a planner's problem say in which forms tensors are shared; a plan records what
follows from them, not the states themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autopar.solver.prepared import solve
from autopar.solver.problem import Assignment, Factor, Problem, Variable


def completed(problem: Problem, states: Sequence[int]) -> Assignment:
    """The fastest assignment whose first variables have these states."""
    first = len(states)
    known = [table for table in problem.tables if all(i < first for i in table.scope)]
    rest = [factor for factor in problem.factors if any(i >= first for i in factor.scope)]
    variables = (_sum(known, states), *problem.variables[first:])
    found = solve(Problem(variables, tuple(_restricted(factor, states) for factor in rest)))
    whole = (*states, *found.states[1:])
    return replace(
        found, states=whole, seconds=problem.seconds(whole), nbytes=problem.nbytes(whole)
    )


def _sum(known: Sequence[Factor], states: Sequence[int]) -> Variable:
    """What is decided, as a variable without a choice."""
    seconds = sum(float(table.seconds[table.at(states)]) for table in known)
    uncovered = sum(
        float(table.uncovered[table.at(states)]) for table in known if table.uncovered is not None
    )
    return Variable("decided", np.array([seconds]), np.zeros(1), np.array([uncovered]))


def _restricted(factor: Factor, states: Sequence[int]) -> Factor:
    """The factor over the variables that are not decided; the sum is the first of them."""
    first = len(states)
    at = tuple(states[i] if i < first else slice(None) for i in factor.scope)
    scope = tuple(index - first + 1 for index in factor.scope if index >= first)
    return Factor(
        scope,
        factor.seconds[at],
        None if factor.nbytes is None else factor.nbytes[at],
        None if factor.uncovered is None else factor.uncovered[at],
        None if factor.kept is None else factor.kept[at],
    )
