"""The command ``autopar tune MODEL --mesh 2x2 -o plan.json``: runs plans and corrects the prices."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from autopar.cli.flags import (
    AS_JSON,
    BATCH,
    HARDWARE,
    MEMORY,
    MESH,
    MODEL,
    OPTIMIZER,
    PLAN_FILE,
    PRECISION,
    SEQUENCE,
)
from autopar.cli.inputs import inputs
from autopar.cli.output import console, save, working, writable
from autopar.cli.traced import loaded_to_train, refuse_many
from autopar.cli.values import print_json
from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.render.text import show_tuned
from autopar.render.text.tuned import call_of
from autopar.request.options import Options
from autopar.tune import Tune, Tuned, Tuning
from cost_models.calibrate import processes
from cost_models.calibrate.cluster import is_launched

SPARE_S = 1200.0
"""Beyond the time for trials: starting the processes, planning, and the last trial."""


def command(
    model: MODEL,
    mesh: MESH,
    output: Annotated[Path, PLAN_FILE],
    profile: Annotated[
        Path, typer.Option(dir_okay=False, help="File for the corrected hardware profile.")
    ] = Path("tuned.toml"),
    record: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="File of measured steps; a later run continues from it."),
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Plans to run first.")] = 6,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of each plan.")] = 5,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Start no trial after this number of seconds.")
    ] = 600.0,
    hardware: HARDWARE = None,
    optimizer: OPTIMIZER = "AdamW",
    precision: PRECISION = None,
    memory: MEMORY = None,
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Run a model's best plans, correct the prices by their steps, and plan again.

    Local gloo processes train, one for each device of the mesh; under torchrun every process is a rank
    (`torchrun ... -m -- autopar tune ...`). The fastest plan is written with the corrected profile.
    """
    options: dict[str, Any] = {
        "optimizer": optimizer,
        "precision": precision,
        "memory_limit": memory,
    }
    devices = Mesh.parse(mesh)
    Options.of(**options)  # raises before the model is built
    if devices.world_size == 1:
        raise InputError("A mesh of one device has one plan: there is nothing to tune.")
    _check_files(output, profile, record, model, hardware)
    tuning = Tuning(most, steps, seconds, record)
    load = partial(loaded_to_train, model, batch, sequence)
    job = Tune(load, devices, hardware, options, tuning, _tell)
    if is_launched():
        found = job()
        if os.environ["RANK"] != "0":
            return
    else:
        refuse_many(devices.world_size)
        with working(f"tuning on {devices.world_size} processes, which start first"):
            found = processes.run(devices.world_size, job, limit_s=seconds + SPARE_S)
    _told(found, output, profile, as_json)


def _check_files(
    output: Path, profile: Path, record: Path | None, model: str, hardware: str | None
) -> None:
    """Raise before anything runs if a file cannot be written, or two are the same."""
    if profile.suffix != ".toml":
        raise InputError(f"--profile {profile}: profiles are TOML files, named something.toml.")
    writes = [path for path in (output, profile, record) if path is not None]
    if len({path.resolve() for path in writes}) < len(writes):
        raise InputError("Two of --output, --profile and --record are the same file.")
    writable(*writes, reads=inputs(model=model, hardware=hardware))


def _told(found: Tuned, output: Path, profile: Path, as_json: bool) -> None:
    save(found.plan + "\n", output)
    save(found.hardware, profile)
    if as_json:
        content = asdict(found)
        del content["plan"], content["hardware"]
        print_json(content | {"call": call_of(found, str(profile)), "written": [output, profile]})
    else:
        console().print(
            show_tuned(found, str(profile)), f"\nwrote {output} and {profile}", sep="\n"
        )


def _tell(text: str) -> None:
    """Say what was measured, on standard error, as soon as it is known."""
    print(text, file=sys.stderr, flush=True)
