"""Renders the verdicts of `spmd_types` on a plan's statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from autopar.render.text.table import row, table
from autopar.verify.witness import Verdict


def verdicts(found: Sequence[Verdict]) -> Table:
    """Return a table of the number of statements by verdict; silent ones are listed by reason."""
    made = table(
        "types, as spmd_types derives them", "verdict", "statements", right=("statements",)
    )
    counts = Counter(verdict.kind for verdict in found)
    row(made, "agrees", str(counts["agrees"]))
    for reason, count in Counter(v.words for v in found if v.kind == "silent").most_common():
        row(made, f"cannot say: {reason}", str(count))
    row(made, "contradicts", str(counts["contradicts"]))
    row(made, "all", str(len(found)))
    return made
