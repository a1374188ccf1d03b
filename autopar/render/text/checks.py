"""Renders the results of verifying a plan."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from autopar.render.text.table import row, table
from autopar.verify import Check


def checks(found: Sequence[Check]) -> Table:
    """Return a table with one line per check, and its finding."""
    made = table("the plan, computed again", "check", "", "details")
    made.columns[0].no_wrap, made.columns[-1].no_wrap = True, False
    for check in found:
        row(made, check.name, "holds" if check.ok else "FAILS", check.what)
    return made
