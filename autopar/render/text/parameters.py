"""Renders parameters: shapes, and shardings at rest, in the step and at their uses."""

from __future__ import annotations

from rich.table import Table

from autopar.explain.pins import NOTE, PINNED, pins
from autopar.ir.graph import Graph
from autopar.ir.placement import Sharding
from autopar.ir.units import form, shape
from autopar.plans.decisions import ParameterPlan
from autopar.plans.plan import Plan
from autopar.render.text.fold import fold, lines
from autopar.render.text.names import Names
from autopar.render.text.table import line, table

FORM = 23
"""Characters of a sharding before it is wrapped between axes."""


def parameters(plan: Plan, graph: Graph | None = None) -> Table:
    """Return a table with one line per parameter, repeated blocks once; equal shardings are omitted."""
    axes = ", ".join(plan.mesh.names)
    made = table(f"parameters, types on ({axes})", "name", "", "shape", "stored", "in the step",
                 "used", right=("",))  # fmt: skip
    reads, asked = used(plan, graph), pins(plan)
    rows = ((p.name, (p.name in asked, _cells(p, reads[p.name]))) for p in plan.parameters)
    for found in lines(fold(rows)):
        pinned, cells = found.value or (False, ())
        line(made, f"{found.label}{PINNED if pinned else ''}", found.count, *cells)
    if asked:
        made.caption = NOTE
        made.caption_justify = "left"
    return made


def used(plan: Plan, graph: Graph | None = None) -> dict[str, tuple[str, ...]]:
    """Return the shardings in which operators read each parameter, by the parameter's name.

    With the graph they are exact; without it they are the targets of the parameter's conversions.
    """
    found: dict[str, dict[str, None]] = {p.name: {} for p in plan.parameters}
    names = Names(plan, graph)
    again = {(names.tensor(c.tensor), c.target) for c in plan.conversions if c.regather}
    for name, sharding in _reads(plan, graph, names):
        if name in found:
            word = " again" if (name, sharding) in again else ""
            found[name][form(sharding, FORM) + word] = None
    for parameter in plan.parameters:
        found[parameter.name] = found[parameter.name] or {form(parameter.leaf, FORM): None}
    return {name: tuple(forms) for name, forms in found.items()}


def _reads(plan: Plan, graph: Graph | None, names: Names) -> list[tuple[str, Sharding]]:
    """Return (name, sharding) of every known use."""
    if graph is None:
        sources = {(c.tensor, c.source) for c in plan.conversions}
        ends = [c for c in plan.conversions if (c.tensor, c.target) not in sources]
        return [(names.tensor(c.tensor), c.target) for c in ends]
    return [
        (names.tensor(operand), sharding)
        for node in graph.nodes
        if node.name in plan.choice  # a plan restricted to a block lacks the other nodes
        for operand, sharding in zip(node.operands, plan.choice[node.name].inputs, strict=True)
    ]


def _cells(parameter: ParameterPlan, reads: tuple[str, ...]) -> tuple[str, str, str, str]:
    stored, leaf, use = form(parameter.stored, FORM), form(parameter.leaf, FORM), "\n".join(reads)
    return (
        shape(parameter.shape),
        stored,
        "same" if leaf == stored else leaf,
        "same" if use == leaf else use,
    )
