"""The alternatives to one choice, as a table."""

from __future__ import annotations

import math

from rich.table import Table

from autopar.explain import Explanation
from autopar.show.table import row, table
from autopar.show.units import seconds


def explanation(found: Explanation, rows: int) -> Table:
    """The cheapest alternatives and the chosen one, with what they cost more than the best plan."""
    best = found.alternatives[0].seconds
    more_than_best = "more" if found.is_exact else "more, at least"
    title = f"{found.name}  ({found.path})"
    made = table(title, "types", more_than_best, "", right=(more_than_best,))
    for place, alternative in enumerate(found.alternatives):
        if place < rows or alternative.is_chosen:
            more = alternative.seconds - best
            cost = "impossible" if math.isinf(more) else f"+{seconds(more)}"
            row(made, alternative.types, cost, "chosen" if alternative.is_chosen else "")
    left = len(found.alternatives) - rows
    if left > 0:
        row(made, f"and {left} more", "", "")
    return made
