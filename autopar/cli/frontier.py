"""``autopar frontier MODEL --mesh 2x2``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar.api import plan_frontier
from autopar.cli.models import BATCH, MODEL_HELP, SEQUENCE, load
from autopar.cli.output import console, save
from autopar.errors import InputError
from autopar.given import as_hardware
from autopar.mesh import Mesh
from autopar.show import curve


def command(
    model: Annotated[str, typer.Argument(help=f"{MODEL_HELP}.")],
    mesh: Annotated[str, typer.Option(help="Such as 2x2, or node=2,gpu=8.")],
    hardware: Annotated[
        str | None, typer.Option(help="Profile name or TOML file; none: this machine's.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the plans, one file each.")
    ] = None,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """The whole time-memory curve: plans from the fastest to the smallest, each the best of its size."""
    if output and output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; name a folder.")
    devices, profile = Mesh.parse(mesh), as_hardware(hardware or None)
    loaded = load(model, batch, sequence)
    plans = plan_frontier(loaded.model, devices, loaded.inputs, hardware=profile, loss=loaded.loss)
    console().print(curve(plans))
    for plan in plans if output else ():
        assert output is not None
        save(plan.to_json() + "\n", output / f"{plan.digest}.json")
    if output:
        console().print(f"\nwrote {len(plans)} plans to {output}")
