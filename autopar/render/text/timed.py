"""Renders the answer of the anytime method: cost, bound, bytes, and the work behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from autopar.ir.units import seconds
from autopar.render.text.proof import OPTIMAL
from autopar.render.text.table import row

if TYPE_CHECKING:
    from autopar.solver.anytime.anytime import Solution
    from autopar.solver.anytime.timed_problem import TimedProblem


def timed_solution(
    problem: TimedProblem, found: Solution, seed: int, took_s: float
) -> RenderableType:
    """Return the facts of an answer as two columns."""
    facts = Table.grid(padding=(0, 2))
    gap = "optimal" if found.gap <= OPTIMAL else f"within {max(found.gap, 1e-4):.2%} of optimal"
    row(facts, "cost", f"{found.cost:,.6g}" if found.cost < 1 else f"{found.cost:,.12g}")
    row(facts, "bound", f"{found.bound:,.12g}, {gap} (by Lagrange's bound)")
    course = problem.nbytes(found.states)
    if len(course):
        time = int((problem.limits - course).argmin())
        row(
            facts, "bytes",
            f"{course[time]:,.0f} of {problem.limits[time]:,.0f} at time {time}, where least is left",
        )  # fmt: skip
    variables, states = found.left
    row(
        facts,
        "simplified",
        f"{len(problem.costs)} variables to {variables}, with {states} states",
    )
    work = found.work
    row(
        facts,
        "work",
        f"{work.rounds} rounds of seed {seed}: {work.sweeps} sweeps, {work.moves} forest moves, "
        f"{work.branches} branches",
    )
    row(facts, "solved in", seconds(took_s))
    return facts
