"""``autopar hardware [NAME]``."""

from __future__ import annotations

from typing import Annotated

import typer

from autopar.cli.output import console
from autopar.show import nbytes
from autopar.show.table import row, table
from cost_models.hardware import load, names, to_text


def command(
    name: Annotated[
        str | None, typer.Argument(help="Profile name or TOML file; none: list them.")
    ] = None,
) -> None:
    """List the hardware profiles, or print one."""
    if name is not None:
        typer.echo(to_text(load(name)), nl=False)
        return
    made = table("hardware profiles", "name", "memory", "per host", "date", "source",
                 right=("memory", "per host"))  # fmt: skip
    made.columns[-1].no_wrap = False
    for known in names():
        profile = load(known)
        row(made, known, nbytes(profile.device.memory_bytes), str(profile.devices_per_host),
            profile.date, profile.source)  # fmt: skip
    console().print(made)
