"""Renders how much of the model each mesh axis splits: shares of FLOPs and of parameter bytes."""

from __future__ import annotations

from rich.table import Table

from autopar.plans.plan import Plan
from autopar.render.text.table import row, table


def shares(plan: Plan) -> Table:
    """Return a table with one line per axis: shares of the forward's FLOPs and of parameter bytes."""
    columns = ("devices", "operations", "parameters at rest", "where used")
    made = table("split by each axis", "axis", *columns, right=columns)
    for share, axis in zip(plan.shares, plan.mesh, strict=False):
        parts = (share.flops, share.stored, share.used)
        row(made, share.axis, str(axis.size), *(f"{part:.1%}" for part in parts))
    return made
