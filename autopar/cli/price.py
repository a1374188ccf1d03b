"""The command ``autopar price MODEL --tp 8 --pp 4``: what another tool's configuration would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from autopar.cli.configuration_flags import (
    CONFIG,
    CP,
    DEVICES,
    DP,
    EP,
    GLOBAL_BATCH,
    LAYERS,
    MICROBATCH,
    OPTIMIZER,
    PP,
    RECOMPUTE,
    REPLICAS,
    SCHEDULE,
    SEQUENCE_PARALLEL,
    TP,
    VIRTUAL,
    ZERO,
)
from autopar.cli.flags import AS_JSON, DATABASE, HARDWARE, MODEL, PRECISION, SEQUENCE
from autopar.cli.inputs import inputs
from autopar.cli.model_files import CONFIGURATION
from autopar.cli.models import load
from autopar.cli.output import console, save, working, writable
from autopar.cli.values import print_json
from autopar.compile.given import as_hardware
from autopar.errors import InputError
from autopar.price import Choice, Priced, choice, job_of, price
from autopar.render.text.priced import described, show_priced
from autopar.request.configurations.configuration import Configuration
from autopar.request.configurations.exchanged import Read
from autopar.request.configurations.tool import read_file
from autopar.request.layers import Layers


def command(
    model: MODEL,
    config: CONFIG = None,
    tp: TP = None,
    pp: PP = None,
    dp: DP = None,
    cp: CP = None,
    ep: EP = None,
    devices: DEVICES = None,
    vp: VIRTUAL = None,
    layers: LAYERS = None,
    microbatch: MICROBATCH = None,
    batch: GLOBAL_BATCH = None,
    schedule: SCHEDULE = None,
    zero: ZERO = None,
    replicas: REPLICAS = None,
    sequence_parallel: SEQUENCE_PARALLEL = False,
    recompute: RECOMPUTE = None,
    precision: PRECISION = None,
    optimizer: OPTIMIZER = None,
    hardware: HARDWARE = None,
    database: DATABASE = None,
    only: Annotated[
        bool, typer.Option("--only", help="Leave out autopar's own choice on these devices.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", dir_okay=False, help="Plan file to write."),
    ] = None,
    as_json: AS_JSON = False,
    sequence: SEQUENCE = None,
) -> None:
    """Predict the step of another tool's configuration, beside autopar's own choice.

    The configuration becomes a plan, which is priced like those of `autopar plan`.
    """
    writable(output, reads=inputs(config, database, model=model, hardware=hardware))
    found = read_file(config) if config is not None else Read(Configuration())
    asked = found.configuration.stating(
        tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, devices=devices, virtual=vp, layers=_layers(layers),
        microbatch=microbatch, batch=batch, schedule=schedule, zero=zero, replicas=replicas,
        sequence_parallel=sequence_parallel or None, recompute=recompute, precision=precision,
        optimizer=optimizer, sequence=sequence,
    )  # fmt: skip
    profile = as_hardware(hardware or None)
    is_saved = model.startswith(CONFIGURATION)
    made = (
        load(model, asked.settled().batch, asked.sequence)
        if is_saved
        else load(model, None, sequence)
    )
    job = job_of(made.model, made.inputs, hardware=profile, loss=made.loss, database=database)
    with working("pricing"):
        theirs = price(job, asked)
    if output:
        save(theirs.plan.to_json() + "\n", output)
    ours = None
    if not only:
        with working("planning"):
            ours = choice(job, theirs.configuration)
    said = (*found.said, *theirs.said)
    if as_json:
        print_json(_content(theirs, ours, said) | {"written": output})
        return
    console().print(show_priced(theirs, ours, said))
    if output:
        console().print(f"\nwrote {output}")


def _layers(text: str | None) -> Layers | None:
    """Parse the layers of each stage, such as ``7,8,8,7``."""
    if text is None:
        return None
    try:
        return Layers(tuple(int(part) for part in text.split(",")))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"Cannot read --layers {text!r}: write the number of layers of each stage, as 7,8,8,7."
        ) from None


def _content(theirs: Priced, ours: Choice | None, said: Sequence[str]) -> dict[str, Any]:
    """Return the figures as JSON data, with the choice's below ``choice``."""
    found: dict[str, Any] = {
        **asdict(theirs.figures),
        "fits": theirs.fits,
        "memory_nbytes": theirs.memory_nbytes,
        "configuration": theirs.configuration,
        "digest": theirs.plan.digest,
        "said": list(said),
    }
    if ours is None:
        return found
    if ours.plan is None or ours.figures is None:
        return found | {"choice": {"remark": ours.why}}
    what = {"digest": ours.plan.digest, "plan": described(ours.plan)}
    return found | {"choice": {**asdict(ours.figures), **what}}
