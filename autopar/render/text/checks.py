"""What was found when a plan was computed again."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from autopar.render.text.table import row, table
from autopar.verify import Check


def checks(found: Sequence[Check]) -> Table:
    """A line per check; what is wrong stands where it was found."""
    made = table("the plan, computed again", "check", "", "what was found")
    made.columns[0].no_wrap, made.columns[-1].no_wrap = True, False
    for check in found:
        row(made, check.name, "holds" if check.ok else "FAILS", check.what)
    return made
