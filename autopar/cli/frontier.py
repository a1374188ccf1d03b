"""The command ``autopar frontier MODEL --mesh 2x2``: time against memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar.api import plan_frontier
from autopar.cli.flags import (
    AS_JSON,
    BATCH,
    DATABASE,
    HARDWARE,
    MESH,
    MODEL,
    OPTIMIZER,
    PRECISION,
    SEQUENCE,
)
from autopar.cli.inputs import inputs
from autopar.cli.models import load
from autopar.cli.output import console, save, watched, writable
from autopar.cli.values import outlined, print_json
from autopar.compile.given import as_hardware
from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.render.text import curve
from autopar.request.options import Options
from autopar.request.planning import Planning


def command(
    model: MODEL,
    mesh: MESH,
    hardware: HARDWARE = None,
    optimizer: OPTIMIZER = "AdamW",
    precision: PRECISION = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the plans, one file each.")
    ] = None,
    database: DATABASE = None,
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Print the plans at the corners of the time-memory hull, from the fastest to the smallest."""
    Options.of(optimizer=optimizer, precision=precision)
    if output and output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; name a folder.")
    writable(output, reads=inputs(database, model=model, hardware=hardware))
    devices, profile = Mesh.parse(mesh), as_hardware(hardware or None)
    loaded = load(model, batch, sequence)
    plans = plan_frontier(
        loaded.model, devices, loaded.inputs, hardware=profile, watch=watched, loss=loaded.loss,
        optimizer=optimizer, precision=precision, planning=Planning(database),
    )  # fmt: skip
    for plan in plans if output else ():
        assert output is not None
        save(plan.to_json() + "\n", output / f"{plan.digest}.json")
    if as_json:
        print_json({"plans": [outlined(plan) for plan in plans], "written": output})
        return
    console().print(curve(plans))
    if output:
        console().print(f"\nwrote {len(plans)} plans to {output}")
