"""Renders operators with their shardings, and conversions between shardings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rich.table import Table

from autopar.explain.pins import NOTE, PINNED, pinned_operators
from autopar.ir.collectives import COLLECTIVES
from autopar.ir.graph import Graph
from autopar.ir.placement import N, S
from autopar.ir.units import form, joined
from autopar.plans.decisions import Conversion, OpSharding
from autopar.plans.plan import Plan
from autopar.render.text.fold import Block, Item, Row, fold, lines
from autopar.render.text.names import Names
from autopar.render.text.table import line, row, table

FORM = 23
"""Characters of a sharding before it is wrapped between axes."""
Cells = tuple[str, ...]
NOTHING = ("", "", "", "")
"""Cells of a block's heading."""


def operators(plan: Plan, graph: Graph | None = None) -> Table:
    """Return a table with one line per operator of a block; runs of one sharding are one line.

    Operators without gradient that are computed whole are only counted.
    """
    axes = ", ".join(plan.mesh.names)
    made = table(f"operators, types on ({axes})", "name", "", "reads", "makes", right=("",))
    for found in lines(folded(plan, graph)):
        reads, makes, variant, asked = found.value or NOTHING
        line(made, f"{found.label}{PINNED if asked else ''}", found.count, reads, makes)
        if variant:
            row(made, " " * (len(found.label) - len(found.label.lstrip()) + 4) + f"by {variant}")
    whole = sum(_is_whole(sharding) for _, sharding in _computing(plan))
    if whole:
        row(made, "others, without gradient", f"x{whole}", "whole", "whole")
    made.caption = _note(plan, graph)
    made.caption_justify = "left"
    return made


def _note(plan: Plan, graph: Graph | None) -> str | None:
    """Return the legend of the marks, or how to get them: they require the graph."""
    if pinned_operators(plan, graph):
        return NOTE
    speaks = graph is None and any(c.subject == "tensor" for c in plan.asked.constraints)
    return "Pass the MODEL to see which of them you asked for." if speaks else None


def folded(plan: Plan, graph: Graph | None = None) -> tuple[Item[Cells], ...]:
    """Return the operators that are not computed whole, folded: input and output shardings, variant,
    and constraints.
    """
    names, asked = Names(plan, graph), pinned_operators(plan, graph)
    split = [(node, sharding) for node, sharding in _computing(plan) if not _is_whole(sharding)]
    rows = ((names.operator(node), sharding) for node, sharding in split)
    return _runs(fold((name, (*_cells(sharding), asked.get(name, ""))) for name, sharding in rows))


def _computing(plan: Plan) -> list[tuple[str, OpSharding]]:
    return [(c.node, c.sharding) for c in plan.choices if c.sharding.inputs]


def conversions(plan: Plan, graph: Graph | None = None) -> Table:
    """Return a table of tensors that are resharded by collectives, and the collectives per direction."""
    made = table("conversions", "tensor", "", "axis", "change", "forward", "backward", right=("",))
    names = Names(plan, graph)
    rows = [(names.tensor(c.tensor), _collectives(c, plan, names)) for c in plan.conversions]
    issued = [(name, cells) for name, cells in rows if any(cells[-2:])]
    for found in lines(fold(issued)):
        line(made, found.label, found.count, *(found.value or ()))
    free = len(rows) - len(issued)
    if free or not rows:
        row(made, "others, free", f"x{free}")
    return made


def _is_whole(sharding: OpSharding) -> bool:
    return all(kind is N for part in (*sharding.inputs, *sharding.outputs) for kind in part)


def _cells(sharding: OpSharding) -> Cells:
    """Return the cells for inputs, outputs and variant; equal operands are merged."""
    return (
        joined(dict.fromkeys(form(part, FORM) for part in sharding.inputs), FORM + 1),
        joined(dict.fromkeys(form(part, FORM) for part in sharding.outputs), FORM + 1),
        sharding.variant,
    )


def _runs(items: Iterable[Item[Cells]]) -> tuple[Item[Cells], ...]:
    """Merge consecutive operators whose inputs and outputs all have one sharding into one row;
    constrained operators keep their own row.
    """
    made: list[Item[Cells]] = []
    for item in items:
        last = made[-1] if made else None
        if isinstance(item, Block):
            made.append(replace(item, body=_runs(item.body)))
        elif isinstance(last, Row) and last.value == item.value and _keeps(item.value):
            made[-1] = Row(_span(last.name, item.name), item.value, last.count + item.count)
        else:
            made.append(item)
    return tuple(made)


def _span(first: str, last: str) -> str:
    """Return a run's first and last name: ``mlp/mul ... cat``."""
    first = first.partition(" ... ")[0]
    module = f"{first.rpartition('/')[0]}/"
    return f"{first} ... {last.removeprefix(module).lstrip('./')}"


def _keeps(cells: Cells) -> bool:
    reads, makes, variant, asked = cells
    return reads == makes and not variant and not asked


def _collectives(conversion: Conversion, plan: Plan, names: Names) -> Cells:
    """Return axis, change of type, and the collectives of each direction."""
    axis, source, target = conversion.axis, conversion.source, conversion.target
    flows = names.differentiable(conversion.tensor, source, target)
    pair = conversion.step.collectives(flows) if plan.mesh.sizes[axis] > 1 else None
    forward, backward = (name if _sends(name) else "" for name in pair or ("", ""))
    again = forward if conversion.regather and isinstance(source[axis], S) else ""
    return (
        plan.mesh.names[axis],
        f"{source[axis]} -> {target[axis]}",
        forward,
        ", ".join(filter(None, (again, backward))),
    )


def _sends(name: str) -> bool:
    """Return whether a collective sends anything; one that this process does not know does."""
    return bool(name) and (name not in COLLECTIVES or COLLECTIVES[name].sends is not None)
