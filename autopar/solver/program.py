"""Where the least of some linear functions is highest: a small linear program, by OR-Tools.

GLOP solves it; where that gives up for numerical reasons, as it has been seen to, CLP does.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.errors import InternalError

BACKENDS = ("GLOP", "CLP")


def highest(
    costs: Sequence[float],
    excess: Sequence[Sequence[float]],
    dearest: Sequence[float],
    simplex: bool = False,
) -> tuple[float, list[float]] | None:
    """max t  subject to  t <= cost_k + m . excess_k  for all k,  0 <= m <= dearest  (and sum m = 1).

    None where t may grow without end.
    """
    # OR-Tools takes a while to load, and is needed only where limits bind or something hides.
    from ortools.linear_solver import pywraplp  # type: ignore[attr-defined]

    for backend in BACKENDS:
        solver = pywraplp.Solver.CreateSolver(backend)
        if solver is None:
            raise InternalError(f"This OR-Tools has no {backend}.")
        height = solver.NumVar(-solver.infinity(), solver.infinity(), "")
        multipliers = [solver.NumVar(0.0, min(most, solver.infinity()), "") for most in dearest]
        for cost, row in zip(costs, excess, strict=True):
            solver.Add(height <= cost + sum(m * e for m, e in zip(multipliers, row, strict=True)))
        if simplex:
            solver.Add(sum(multipliers) == 1.0)
        solver.Maximize(height)
        status = solver.Solve()
        # A low enough t is always feasible, whatever a backend calls a program without an optimum.
        if status in (pywraplp.Solver.UNBOUNDED, pywraplp.Solver.INFEASIBLE):
            return None
        if status == pywraplp.Solver.OPTIMAL:
            return height.solution_value(), [max(0.0, m.solution_value()) for m in multipliers]
    raise InternalError("The linear program over multipliers has no optimum.")
