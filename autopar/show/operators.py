"""Operators and conversions: who computes on what, and where types change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rich.table import Table

from autopar.conversion import collectives
from autopar.graph import Graph
from autopar.placement import N, S
from autopar.plan import Conversion, OpSharding, Plan
from autopar.show.fold import Block, Item, Row, fold, lines
from autopar.show.names import Names
from autopar.show.table import row, table, times
from autopar.show.units import form, joined

Cells = tuple[str, ...]


def operators(plan: Plan, graph: Graph | None = None) -> Table:
    """One line per operator of a block; runs that keep one type are one line.

    Operators that compute whole, without gradient, are only counted.
    """
    axes = ", ".join(plan.mesh.names)
    made = table(f"operators, types on ({axes})", "name", "", "reads", "makes", "by", right=("",))
    names = Names(plan, graph)
    computing = [choice for choice in plan.choices if choice.sharding.inputs]
    shown = [choice for choice in computing if not _is_whole(choice.sharding)]
    rows = ((names.operator(choice.node), _cells(choice.sharding)) for choice in shown)
    for line in lines(_runs(fold(rows))):
        row(made, line.label, times(line.count), *(line.value or ()))
    whole = len(computing) - len(shown)
    if whole:
        row(made, "others, without gradient", times(whole), "whole", "whole", "")
    return made


def conversions(plan: Plan, graph: Graph | None = None) -> Table:
    """Tensors that change their type by a collective, and what each direction issues."""
    made = table("conversions", "tensor", "", "axis", "from", "to", "forward", "backward",
                 right=("",))  # fmt: skip
    names = Names(plan, graph)
    rows = [(names.tensor(c.tensor), _collectives(c, plan, names)) for c in plan.conversions]
    issued = [(name, cells) for name, cells in rows if any(cells[-2:])]
    for line in lines(fold(issued)):
        row(made, line.label, times(line.count), *(line.value or ()))
    free = len(rows) - len(issued)
    if free or not rows:
        row(made, "others, free of communication", times(free) or str(free))
    return made


def _is_whole(sharding: OpSharding) -> bool:
    return all(kind is N for part in (*sharding.inputs, *sharding.outputs) for kind in part)


def _cells(sharding: OpSharding) -> Cells:
    """Reads, makes, by; equal operands are said once."""
    return (
        joined(dict.fromkeys(form(part) for part in sharding.inputs), 32),
        joined(dict.fromkeys(form(part) for part in sharding.outputs), 28),
        sharding.variant,
    )


def _runs(items: Iterable[Item[Cells]]) -> tuple[Item[Cells], ...]:
    """Consecutive operators that read and make one and the same type, as one row."""
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
    """``mlp/mul ... cat``: from the first name of a run to its last one."""
    first = first.partition(" ... ")[0]
    module = f"{first.rpartition('/')[0]}/"
    return f"{first} ... {last.removeprefix(module).lstrip('./')}"


def _keeps(cells: Cells) -> bool:
    reads, makes, variant = cells
    return reads == makes and not variant


def _collectives(conversion: Conversion, plan: Plan, names: Names) -> Cells:
    """Axis, from, to, and the collective of each direction."""
    axis, source, target = conversion.axis, conversion.source, conversion.target
    flows = names.differentiable(conversion.tensor, source, target)
    wide = plan.mesh.sizes[axis] > 1
    pair = collectives(source[axis], target[axis], flows) if wide else None
    forward, backward = pair or (None, None)
    again = ["all_gather"] if conversion.regather and isinstance(source[axis], S) else []
    return (
        plan.mesh.names[axis],
        form(source, 24),
        form(target, 24),
        forward or "",
        joined([*again, *([backward] if backward else [])], 14),
    )
