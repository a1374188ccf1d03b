"""The command ``autopar compare MODEL --mesh 2x2 --plan mine.json``: plans side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autopar.cli.flags import (
    AS_JSON,
    BATCH,
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
from autopar.cli.output import console, watched
from autopar.cli.stages import load_plan
from autopar.cli.values import print_json
from autopar.compile.given import as_hardware
from autopar.errors import InputError
from autopar.explain.compare import Contender, compare
from autopar.ir.mesh import Mesh
from autopar.render.text.html import drawn
from autopar.request import presets
from autopar.request.options import Options
from autopar.request.planning import Planning


def command(
    model: MODEL,
    mesh: MESH,
    plan: Annotated[
        list[Path] | None, typer.Option(help="Plan file to compare with; repeatable.")
    ] = None,
    preset: Annotated[
        list[str] | None, typer.Option(help="Only this preset; repeatable; default: all.")
    ] = None,
    hardware: HARDWARE = None,
    optimizer: OPTIMIZER = "AdamW",
    precision: PRECISION = None,
    memory: MEMORY = None,
    database: DATABASE = None,
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Compare the solver's plan with every preset and with your own plans, in one table.

    Each row is the best plan of its kind. If there is none, the table says why.
    """
    asked: dict[str, Any] = {
        "optimizer": optimizer, "precision": precision, "memory_limit": memory,
        "planning": Planning(database),
    }  # fmt: skip
    chosen = tuple(presets.known(name) for name in preset or presets.names())
    devices, profile = Mesh.parse(mesh), as_hardware(hardware or None)
    Options.of(**asked)  # raises before the model is built
    given = {str(path): load_plan(path) for path in plan or ()}
    if len(given) < len(plan or ()):
        raise InputError("The same --plan is given twice.")
    loaded = load(model, batch, sequence)
    found = compare(
        loaded.model, devices, loaded.inputs, hardware=profile, plans=given, names=chosen,
        watch=watched, loss=loaded.loss, **asked,
    )  # fmt: skip
    if as_json:
        print_json({"plans": [_content(each) for each in found]})
    else:
        console().print(drawn(found))


def _content(each: Contender) -> dict[str, Any]:
    """Return one plan as JSON data, with the figures of its outline."""
    plan = each.plan
    figures = {} if plan is None else plan.outline.figures
    return {
        "name": each.name,
        "digest": None if plan is None else plan.digest,
        "operator times": None if plan is None else str(plan.times or "modelled"),
        "remark": each.why,
        "figures": [{"kind": kind, "name": n, "value": v} for (kind, n), v in figures.items()],
        "bound_s": getattr(plan, "bound_s", None),
        "proof": getattr(plan, "proof", None),
    }
