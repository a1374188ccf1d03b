"""Checks a solver's answer against the problem alone: states, cost, bytes, limits and bound."""

from __future__ import annotations

import math

import numpy as np

from autopar.errors import PlanError
from autopar.solver.problem import Assignment, Limits, Problem, limits_of

NEAR, TICK_S = 1e-9, 1e-12
"""Relative difference of sums in another order, and the seconds that solvers count in."""


def check_answer(solver: str, problem: Problem, limits: Limits, found: Assignment) -> None:
    """Raise `PlanError` if the answer of a solver is not one of the problem."""
    fault = _fault(problem, limits, found)
    if fault:
        raise PlanError(f"The answer of the solver {solver!r} is wrong: {fault}.")


def _fault(problem: Problem, limits: Limits, found: object) -> str:
    if not isinstance(found, Assignment):
        return f"it is a {type(found).__name__}, not an Assignment"
    fault = _fault_of_states(problem, found.states)
    if fault:
        return fault
    states = tuple(int(state) for state in found.states)
    seconds, nbytes = problem.seconds(states), problem.nbytes(states)
    if not math.isfinite(seconds):
        return "its states are forbidden together: their cost is infinite"
    if not math.isclose(found.seconds, seconds, rel_tol=NEAR, abs_tol=TICK_S):
        return f"its states cost {seconds:.9g} s, not {found.seconds:.9g} s"
    if not math.isclose(found.nbytes, nbytes, rel_tol=NEAR, abs_tol=0.5):
        return f"its states take {nbytes:,.0f} bytes, not {found.nbytes:,.0f}"
    for limit in limits_of(limits):
        load = problem.load(states, limit.load)
        if load > limit.nbytes * (1.0 + NEAR):
            where = "" if limit.time is None else f" at time {limit.time}"
            return f"it takes {load:,.0f} bytes{where}; the limit is {limit.nbytes:,.0f}"
    if not found.bound_s <= seconds + NEAR * abs(seconds) + TICK_S:
        return f"its lower bound, {found.bound_s:.9g} s, is above its cost, {seconds:.9g} s"
    return ""


def _fault_of_states(problem: Problem, states: object) -> str:
    if not isinstance(states, tuple) or len(states) != len(problem.variables):
        return (
            f"it needs a tuple of {len(problem.variables)} states, one per variable, not {states!r}"
        )
    for variable, state in zip(problem.variables, states, strict=True):
        if not isinstance(state, (int, np.integer)) or not 0 <= state < variable.size:
            return f"{variable.name!r} has the states 0 to {variable.size - 1}, not {state!r}"
    return ""
