"""The rest of an assignment of which the first states are given: what a plan's decisions cost.

The last variables of a planner's problem say in which forms tensors are shared; a plan records what
follows from them, not the states themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.problem import Assignment, Factor, Problem
from autopar.solve.limit import solve


def completed(problem: Problem, states: Sequence[int]) -> Assignment:
    """The fastest assignment whose first variables have these states."""
    first = len(states)
    factors = [
        Factor(
            tuple(index - first for index in factor.scope if index >= first),
            factor.seconds[tuple(_places(factor, states))],
            None if factor.nbytes is None else factor.nbytes[tuple(_places(factor, states))],
        )
        for factor in problem.factors
        if any(index >= first for index in factor.scope)
    ]
    rest = solve(Problem(problem.variables[first:], tuple(factors)))
    whole = (*states, *rest.states)
    seconds = problem.seconds(whole)
    bound_s = min(seconds, seconds - rest.seconds + rest.bound_s)
    return Assignment(whole, seconds, problem.nbytes(whole), bound_s, rest.proof, rest.left)


def _places(factor: Factor, states: Sequence[int]) -> list[int | slice]:
    """Where the factor's table is read: the given states, and all of the others."""
    return [states[i] if i < len(states) else slice(None) for i in factor.scope]
