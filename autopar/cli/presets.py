"""``autopar presets``."""

from __future__ import annotations

from autopar import presets
from autopar.cli.output import console
from autopar.show.table import row, table


def command() -> None:
    """List the presets and what each is."""
    made = table("presets", "name", "what it asks for")
    made.columns[0].no_wrap, made.columns[1].no_wrap = True, False
    for name in presets.names():
        row(made, name, presets.describe(name))
    console().print(made)
