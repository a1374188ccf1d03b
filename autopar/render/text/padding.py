"""Renders padding: dims that are longer in the step, the axes that split them, and the waste."""

from __future__ import annotations

from rich.table import Table

from autopar.ir.units import seconds
from autopar.plans.plan import Plan
from autopar.plans.record import Padding
from autopar.render.text.fold import fold, lines
from autopar.render.text.table import line, table


def padding(plan: Plan) -> Table:
    """Return a table with one line per padded parameter of a block, and per padded input."""
    columns = ("dim", "from", "to", "split on", "wasted")
    made = table("padding", "name", "", *columns, right=("", "from", "to", "wasted"))
    rows = ((each.leaf, _cells(each)) for each in plan.padding)
    for found in lines(fold(rows)):
        line(made, found.label, found.count, *(found.value or ()))
    return made


def _cells(padding: Padding) -> tuple[str, ...]:
    pad = padding.pad
    parts = [f"{pad.before} blocks"] * (pad.before > 1) + [f"each {pad.after} long"] * (
        pad.after > 1
    )
    dim = f"{pad.dim} ({', '.join(parts)})" if parts else str(pad.dim)
    axes = ", ".join(padding.axes) or "none"
    return dim, str(pad.size), str(pad.to), axes, f"{padding.wasted:.1%}"


def compared(plan: Plan) -> str:
    """Return the sets of paddings that were tried, and the cost of each."""
    return "; ".join(
        f"{each.what}: {'not possible' if each.objective_s is None else seconds(each.objective_s)}"
        for each in plan.padded
    )
