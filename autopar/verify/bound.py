"""Checks a plan's lower bound by solving the problem again."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.solver import hull
from autopar.solver.problem import Assignment
from autopar.verify.check import Check, checked, differs
from autopar.verify.recomputed import RecomputedFigures

SAME = 1e-6
"""Relative tolerance between bounds that were proved in the same way."""
TICK_S = 1e-12
"""Solvers count in whole picoseconds; pricing memory may lose one per table."""


def bounds(again: RecomputedFigures, prove: bool, slack: float) -> Iterator[Check]:
    """Check that the bound is below the objective and, with `prove`, equals the bound proved again.

    It may be lower by the fraction `slack`.
    """
    solved = _solved(again) if prove else None
    yield _search(again, solved)
    yield _bound(again, solved, slack)


def _solved(again: RecomputedFigures) -> Assignment:
    """Solve within the memory to which the bound refers; for a hull corner, return that corner."""
    problem, limit = again.posed.priced.problem, again.stated.bound_nbytes
    if again.stated.proof == "hull":
        named = again.posed.priced.states(again.decisions)
        corners = (corner for corner in hull(problem) if corner.states[: len(named)] == named)
        return next(corners, None) or again.posed.solve(limit)
    return again.posed.solve(limit)


def _search(again: RecomputedFigures, solved: Assignment | None) -> Check:
    stated = again.stated.search
    count, largest = again.posed.priced.candidates.count()
    faults = [
        *differs("search.candidates", stated.candidates, count),
        *differs("search.largest", stated.largest, largest),
    ]
    if solved is not None:
        variables, states = solved.left
        faults += differs("search.variables", stated.variables, variables)
        faults += differs("search.states", stated.states, states)
    return checked("search", f"{count} candidates, {largest} at most", faults)


def _bound(again: RecomputedFigures, solved: Assignment | None, slack: float) -> Check:
    plan = again.stated
    faults = []
    if not plan.bound_s <= plan.objective_s:
        faults.append(f"bound_s is {plan.bound_s}, above objective_s, which is {plan.objective_s}")
    if solved is None:
        return checked("bound", f"{plan.bound_s:g} s, not proved again", faults)
    tables = len(again.posed.priced.problem.factors)
    above, near = plan.bound_s - solved.bound_s, SAME * abs(solved.bound_s) + tables * TICK_S
    if not -near - slack * abs(solved.bound_s) <= above <= near:
        faults.append(
            f"bound_s is {plan.bound_s} in the plan; what can be proved is {solved.bound_s}"
        )
    if not slack:
        faults += differs("proof", plan.proof, solved.proof)
    return checked("bound", f"{solved.bound_s:g} s, proved again ({solved.proof})", faults)
