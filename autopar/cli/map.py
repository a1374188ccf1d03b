"""The command ``autopar map MODEL --mesh 8x8 --batches 8,32 --memories 40GiB,80GiB``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autopar.cli.flags import (
    AS_JSON,
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
from autopar.cli.values import outlined_point, print_json
from autopar.compile.given import as_hardware
from autopar.compile.sweep import plan_landscape
from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.render.text import landscape_grid, landscape_table
from autopar.request.options import Options, nbytes
from autopar.request.planning import Planning
from autopar.utils.io import text_of

BEGIN, END = "<!-- written by autopar map, anew each time -->", "<!-- until here -->"
"""Markers in a page: the command replaces the text between them and keeps the rest."""


def command(
    model: MODEL,
    mesh: MESH,
    batches: Annotated[str, typer.Option(help="Global batches, such as 8,32,128.")],
    memories: Annotated[str, typer.Option(help="Limits per device, such as 40GiB,80GiB.")],
    hardware: HARDWARE = None,
    optimizer: OPTIMIZER = "AdamW",
    precision: PRECISION = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", dir_okay=False, help="Markdown page to write the map into."),
    ] = None,
    database: DATABASE = None,
    as_json: AS_JSON = False,
    sequence: SEQUENCE = None,
) -> None:
    """Show how the best plan changes with batch and memory limit, as a table.

    The example inputs of a factory are resized to each batch.  If the page exists, the command replaces
    only its own earlier output.
    """
    sizes, limits = _batches(batches), _memories(memories)
    Options.of(optimizer=optimizer, precision=precision)
    page = _page(output) if output else ""
    writable(output, reads=inputs(database, model=model, hardware=hardware))
    devices, profile = Mesh.parse(mesh), as_hardware(hardware or None)
    loaded = load(model, sizes[0] if model.startswith("hf:") else None, sequence)
    every = plan_landscape(
        loaded.model, devices, loaded.inputs, batches=sizes, memories=limits, hardware=profile,
        loss=loaded.loss, optimizer=optimizer, precision=precision, planning=Planning(database),
    )  # fmt: skip
    points = list(watched(every, len(sizes) * len(limits), "planning"))
    if not as_json:
        console().print(landscape_table(points))
    if output:
        asked = {"mesh": mesh, "hardware": hardware, "batches": batches, "memories": memories,
                 "sequence": sequence, "precision": precision, "database": database,
                 "optimizer": "" if optimizer == "AdamW" else optimizer}  # fmt: skip
        flags = " ".join(f"--{name} {value}" for name, value in asked.items() if value)
        written = f"    autopar map {model} {flags} -o {output}\n\n{landscape_grid(points)}"
        save(_with_map(page, written), output)
    if as_json:
        print_json({"points": [outlined_point(point) for point in points], "written": output})
    elif output:
        console().print(f"\nwrote {output}")


def _batches(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"Cannot read the batches {text!r}: write whole numbers, as 8,32,128.")
    return tuple(sorted({int(part) for part in parts}))


def _memories(text: str) -> tuple[float, ...]:
    return tuple(sorted({limit for part in text.split(",") if (limit := nbytes(part)) is not None}))


def _page(path: Path) -> str:
    """Return the page's text, "" if it does not exist; raise `InputError` if it lacks the markers."""
    text = text_of(path, "the page", InputError) if path.exists() else ""
    if text and not (BEGIN in text and END in text.partition(BEGIN)[2]):
        raise InputError(
            f"{path} exists and has no place for a map: name another file, or write these two "
            f"lines where the map should go:\n{BEGIN}\n{END}"
        )
    return text


def _with_map(page: str, written: str) -> str:
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2] if page else "\n"
    return f"{before}{BEGIN}\n\n{written}\n{END}{after}"
