"""The command ``autopar presets``: lists the presets."""

from __future__ import annotations

from autopar.cli.flags import AS_JSON
from autopar.cli.output import console
from autopar.cli.values import print_json
from autopar.render.text.table import row, table
from autopar.request import presets


def command(as_json: AS_JSON = False) -> None:
    """List the presets with their descriptions."""
    if as_json:
        print_json({name: presets.describe(name) for name in presets.names()})
        return
    made = table("presets", "name", "layout")
    made.columns[0].no_wrap, made.columns[1].no_wrap = True, False
    for name in presets.names():
        row(made, name, presets.describe(name))
    console().print(made)
