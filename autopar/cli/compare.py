"""``autopar compare MODEL --mesh 2x2 --plan mine.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autopar import presets
from autopar.cli.models import BATCH, MODEL_HELP, SEQUENCE, load
from autopar.cli.output import AS_JSON, console, known, print_json, watched
from autopar.cli.stages import load_plan
from autopar.compare import Contender, compare
from autopar.errors import InputError
from autopar.given import as_hardware
from autopar.mesh import Mesh
from autopar.options import Options
from autopar.show import contenders


def command(
    model: Annotated[str, typer.Argument(help=f"{MODEL_HELP}.")],
    mesh: Annotated[str, typer.Option(help="Such as 2x2, or node=2,gpu=8.")],
    plan: Annotated[
        list[Path] | None, typer.Option(help="A plan of yours, to stand beside; repeatable.")
    ] = None,
    preset: Annotated[
        list[str] | None, typer.Option(help="Only this preset; repeatable; none: all.")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Profile name or TOML file; none: this machine's.")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="Class name in torch.optim.")] = "AdamW",
    precision: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; none: as the model.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Limit per device, e.g. 40GiB.")] = None,
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """The solver's plan beside every preset, and beside plans of your own: one table.

    Each is the best of its kind; of what cannot be, it is said why.
    """
    asked: dict[str, Any] = {
        "optimizer": optimizer, "precision": precision, "memory_limit": memory,
    }  # fmt: skip
    limit = Options.of(**asked).memory_limit
    chosen = tuple(known("preset", name, presets.names()) for name in preset or presets.names())
    devices, profile = Mesh.parse(mesh), as_hardware(hardware or None)
    given = {str(path): load_plan(path) for path in plan or ()}
    if len(given) < len(plan or ()):
        raise InputError("The same --plan is given twice.")
    loaded = load(model, batch, sequence)
    every = compare(
        loaded.model, devices, loaded.inputs, hardware=profile, plans=given, names=chosen,
        loss=loaded.loss, **asked,
    )  # fmt: skip
    found = list(watched(every, 1 + len(chosen) + len(given), "planning"))
    if as_json:
        print_json({"plans": [_content(each) for each in found]})
    else:
        console().print(contenders([(c.name, c.plan, c.why) for c in found], limit))


def _content(each: Contender) -> dict[str, Any]:
    """A row for programs: the outline's figures."""
    plan = each.plan
    figures = {} if plan is None else plan.outline.figures
    return {
        "name": each.name,
        "digest": None if plan is None else plan.digest,
        "remark": each.why,
        "figures": [{"kind": kind, "name": n, "value": v} for (kind, n), v in figures.items()],
        "bound_s": getattr(plan, "bound_s", None),
        "proof": getattr(plan, "proof", None),
    }
