"""The search over assignments (`anytime`), where the tables of elimination would grow too large."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from autopar.errors import InfeasibleError, PlanError
from autopar.solver.problem import Assignment, Factor, Limits, Problem, Variable

T = TypeVar("T", Variable, Factor)
ROUNDS = 3
"""Rounds of the search: work is counted, as time would make plans differ."""


def searched(problem: Problem, limits: Limits, hidden: float) -> Assignment | None:
    """Return the best assignment that the search finds, with its bound; None if it finds none.

    `hidden` is the price of an uncovered second, from 0 to 1.  With uncovered seconds at that price, no
    assignment costs more than it does, so the bound holds.
    """
    # Its compiled kernels take a while to load, and are seldom needed.
    from autopar.solver.anytime.anytime import solve_anytime
    from autopar.solver.anytime.from_problem import from_problem

    def priced(table: T) -> T:
        if table.uncovered is None:
            return table
        return replace(table, seconds=table.seconds + hidden * table.uncovered, uncovered=None)

    linear = Problem(tuple(map(priced, problem.variables)), tuple(map(priced, problem.factors)))
    try:
        found = solve_anytime(from_problem(linear, limits), float("inf"), rounds=ROUNDS)
    except (InfeasibleError, PlanError):
        return None
    states = found.states[: len(problem.variables)]
    seconds = problem.seconds(states)
    bound_s = min(seconds, found.bound)
    return Assignment(states, seconds, problem.nbytes(states), bound_s, "lagrange", found.left)
