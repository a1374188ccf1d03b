"""Renders the user's request for a pipeline: limit, preset, and constraints with their targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table

from autopar.explain.pins import PINNED, pinned_operators, pins
from autopar.ir.graph import Graph
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.render.text.cost import limited, listed
from autopar.render.text.fold import fold, lines
from autopar.render.text.table import line, row, table
from autopar.request.constraints import Constraint


def asked(plan: PipelinePlan) -> Table:
    """Return a table of the request.  A stage's own plan has only the constraints that apply to it."""
    own = plan.stages[0].plan
    facts = {
        "memory limit": limited(plan.memory_limit),
        "preset": own.preset or "none, the solver chose",
        "constraints": listed(constraints(plan)),
    }
    made = Table.grid(padding=(0, 2))
    for name, fact in facts.items():
        row(made, name, fact)
    return made


def constraints(plan: PipelinePlan) -> tuple[Constraint, ...]:
    """Return the constraints of all stages, without duplicates."""
    every = (c for each in plan.stages for c in each.plan.asked.constraints)
    return tuple(dict.fromkeys(every))


def pinned(plan: PipelinePlan, graphs: Sequence[Graph] = ()) -> Iterator[RenderableType]:
    """Yield a table of constrained parameters by stage; with the stages' graphs also operators."""
    rows = tuple(_rows(plan, graphs))
    if rows:
        made = table("you asked for", "name", "", "stage", "what", right=("", "stage"))
        for found in lines(fold(rows)):
            mark = PINNED if found.value else ""
            line(made, f"{found.label}{mark}", found.count, *found.value or ())
        yield from ("", made)
    if not graphs and any(c.subject == "tensor" for c in constraints(plan)):
        yield "Pass the MODEL to see which operators the constraints match."


def _rows(plan: PipelinePlan, graphs: Sequence[Graph]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield names with stage and constraint; a stage that several workers hold counts once."""
    first = {each.stage: each.plan for each in reversed(plan.stages)}
    for stage, own in sorted(first.items()):
        found = pins(own) | pinned_operators(own, graphs[stage] if graphs else None)
        yield from ((name, (str(stage), said)) for name, said in found.items())
