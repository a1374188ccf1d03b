"""The command ``autopar fit MODEL --mesh 8x8``: the largest batch that fits."""

from __future__ import annotations

import typer

from autopar.cli.flags import (
    AS_JSON,
    DATABASE,
    HARDWARE,
    MEMORY,
    MESH,
    MODEL,
    OPTIMIZER,
    PRECISION,
    SEQUENCE,
)
from autopar.cli.models import load
from autopar.cli.output import console, working
from autopar.cli.values import outlined_point, print_json
from autopar.compile.given import as_hardware
from autopar.compile.sweep import largest_batch
from autopar.ir.mesh import Mesh
from autopar.render.text import landscape_table
from autopar.request.planning import Planning
from autopar.sharding.landscape import Point


def command(
    model: MODEL,
    mesh: MESH,
    hardware: HARDWARE = None,
    memory: MEMORY = None,
    optimizer: OPTIMIZER = "AdamW",
    precision: PRECISION = None,
    database: DATABASE = None,
    as_json: AS_JSON = False,
    sequence: SEQUENCE = None,
) -> None:
    """Find the largest batch that a mesh can train, and list the batches that were tried.

    The example inputs of a factory are resized.  Plans have no stages: a pipeline, or microbatches, may
    take more.
    """
    devices, profile = Mesh.parse(mesh), as_hardware(hardware or None)
    loaded = load(model, devices.world_size if model.startswith("hf:") else None, sequence)
    with working("planning"):
        tried = sorted(
            largest_batch(
                loaded.model, devices, loaded.inputs, memory_limit=memory, hardware=profile,
                loss=loaded.loss, optimizer=optimizer, precision=precision, planning=Planning(database),
            ),
            key=lambda point: point.batch,
        )  # fmt: skip
    fitting = [point for point in tried if point.made is not None]
    if as_json:
        print_json({"largest": outlined_point(fitting[-1]) if fitting else None,
                    "tried": [outlined_point(point) for point in tried]})  # fmt: skip
    else:
        console().print(landscape_table(tried))
        console().print(f"\n{_said(fitting, tried)}")
    if not fitting:
        raise typer.Exit(1)


def _said(fitting: list[Point], tried: list[Point]) -> str:
    if not fitting:
        return (
            "No batch fits, not even one sample. Use more devices, or autopar plan --stages auto."
        )
    last = fitting[-1]
    beyond = [point.batch for point in tried if point.batch > last.batch]
    until = f"; {beyond[0]} does not" if beyond else ", and no larger one was tried"
    best = max(fitting, key=lambda point: point.batch / _step_s(point))
    return (
        f"a batch of {last.batch} fits{until}\n"
        f"most samples per second: {best.batch / _step_s(best):.3g}, with a batch of {best.batch}"
    )


def _step_s(point: Point) -> float:
    assert point.made is not None
    return point.made.plan.estimate.step_s
