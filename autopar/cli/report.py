"""``autopar report plan.json -o report.html``."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer
from torch import nn

from autopar import rules
from autopar.capture.saved import saved
from autopar.cli.flags import AS_JSON, BATCH, MODEL_HELP, OWN_PROFILE, PLAN, SEQUENCE
from autopar.cli.match import graph_of
from autopar.cli.models import load
from autopar.cli.output import console, save
from autopar.cli.simulate import profile_of
from autopar.cli.stages import load_plan, staged_of
from autopar.cli.values import print_json
from autopar.emit import emit
from autopar.errors import InputError
from autopar.explained import hardware_of
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.reading import text_of
from autopar.report import Extras, report, roofline

Sources = tuple[tuple[str, str], ...]


def command(
    plan: PLAN,
    output: Annotated[Path, typer.Option("-o", "--output", dir_okay=False, help="Page to write.")],
    model: Annotated[
        str | None, typer.Option(help=f"For roofline and sources: {MODEL_HELP}.")
    ] = None,
    frontier: Annotated[
        Path | None, typer.Option(help="Folder that `autopar frontier -o` wrote.")
    ] = None,
    hardware: OWN_PROFILE = None,
    as_json: AS_JSON = False,
    batch: BATCH = None,
    sequence: SEQUENCE = None,
) -> None:
    """Write one self-contained page: mesh, stages, sharding, timeline, memory, communication.

    It needs no network and works from a plan alone.
    """
    decided = load_plan(plan)
    curve = _frontier(frontier, decided) if frontier else ()
    profile = profile_of(decided, hardware)
    limit = None if profile is None else profile.device.memory_bytes
    extras = Extras(frontier=curve, limit_nbytes=limit)
    if model is not None:
        extras = _with_model(extras, decided, model, hardware, batch, sequence)
    path = save(report(decided, extras), output)
    size = path.stat().st_size
    if as_json:
        print_json({"written": path, "nbytes": size})
    else:
        console().print(f"wrote {path} ({size / 1e6:.1f} MB)")


def _with_model(
    extras: Extras,
    plan: Plan | PipelinePlan,
    model: str,
    hardware: str | None,
    batch: int | None,
    sequence: int | None,
) -> Extras:
    """With what only the model can tell."""
    written = _written(model, load(model, batch, sequence).model)
    if isinstance(plan, PipelinePlan):
        made = staged_of(plan, model, batch, sequence)
        emitted = tuple(
            (f"emitted, stage {stage} on worker {worker}", text)
            for (stage, worker), text in sorted(made.sources.items())
        )
        return Extras(extras.frontier, None, emitted, written, extras.limit_nbytes)
    graph = graph_of(plan, model, batch, sequence)
    profile = hardware_of(plan, hardware)
    drawn, kept = roofline(plan, graph, profile), saved(graph, profile.device.kind)
    emitted = (("emitted", emit(plan, graph, rules.localize, kept)),)
    return Extras(extras.frontier, drawn, emitted, written, extras.limit_nbytes)


def _written(where: str, model: nn.Module) -> Sources:
    """The file that the user wrote: of a configuration, that of the model's class."""
    found = where.rpartition(":")[0]
    path = Path(found) if found.endswith(".py") else Path(inspect.getfile(type(model)))
    return ((path.name, text_of(path, "the model's source", InputError)),)


def _frontier(folder: Path, plan: Plan | PipelinePlan) -> tuple[Plan, ...]:
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; `autopar frontier MODEL -o {folder}` makes one.")
    found = tuple(Plan.load(path) for path in sorted(folder.glob("*.json")))
    strangers = [p.digest for p in found if p.model != plan.model]
    if strangers or not found:
        what = f"plans of another model, such as {strangers[0]}" if strangers else "no plans"
        raise InputError(f"{folder} holds {what}; `autopar frontier MODEL -o` fills a folder.")
    return found
