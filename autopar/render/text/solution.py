"""Renders the solution of a problem: its cost, its proof, and the state of every variable."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from autopar.ir.units import nbytes, seconds
from autopar.plans.plan import Plan
from autopar.render.text.proof import proof
from autopar.render.text.table import row, table
from autopar.solver.problem import Assignment, Problem


def solution(problem: Problem, found: Assignment, took_s: float) -> RenderableType:
    """Return the costs, then a table of the variables with more than one state."""
    made = table(
        "", "variable", "state", "of", "cost", "bytes", right=("state", "of", "cost", "bytes")
    )
    for variable, state in zip(problem.variables, found.states, strict=True):
        if variable.size > 1:
            cost, held = float(variable.seconds[state]), float(variable.nbytes[state])
            row(made, variable.name, str(state), str(variable.size), seconds(cost), nbytes(held))
    facts = Table.grid(padding=(0, 2))
    proved = proof(found.seconds, found.bound_s, found.proof)
    row(facts, "cost", f"{seconds(found.seconds)}, {proved}")
    row(facts, "bytes", nbytes(found.nbytes))
    row(facts, "solved in", seconds(took_s))
    return Group(facts, made)


def curve(plans: Sequence[Plan]) -> Table:
    """Return the time-memory curve as a table of plans, from the fastest to the smallest."""
    made = table(
        "time against memory", "plan", "step", "memory", "weights", "gradients", "optimizer",
        "activations", right=("step", "memory", "weights", "gradients", "optimizer", "activations"),
    )  # fmt: skip
    for plan in plans:
        e = plan.estimate
        parts = (e.parameter_nbytes, e.gradient_nbytes, e.optimizer_nbytes, e.activation_nbytes)
        row(made, plan.digest, seconds(e.step_s), nbytes(e.memory_nbytes), *map(nbytes, parts))
    return made
