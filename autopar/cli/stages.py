"""What commands have to do with pipelines: flags that are read, files that hold either kind of plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from autopar import rules
from autopar.automatic import StagesLike, source_of
from autopar.cli.models import Loaded, load
from autopar.cli.output import save
from autopar.compiler import Compiler
from autopar.emit import emit
from autopar.errors import InputError, PlanError
from autopar.given import as_hardware
from autopar.graph import Graph
from autopar.mesh import Mesh
from autopar.meta import without_weights
from autopar.options import Options, Precision
from autopar.pipeline_plan import PipelinePlan
from autopar.plan import Plan
from autopar.show.pipeline import schedule_page
from autopar.split import split
from autopar.staged import Staged
from cost_models.hardware import Hardware

STAGES = Annotated[
    str | None,
    typer.Option(
        help="auto, a number of stages, or their meshes, such as 1+3 or 2x2+4; none: auto across "
        "hosts, one stage within a host."
    ),
]
SCHEDULE = Annotated[
    str | None, typer.Option(help="Of stages: 1f1b, gpipe, zb-h1, ...; none: chosen.")
]
MICROBATCHES = Annotated[
    int | None, typer.Option(min=1, help="Parts of the batch in a step of stages.")
]
CUT = Annotated[
    list[str] | None, typer.Option(help="Operator that a stage begins with; repeatable.")
]
ASYNCHRONOUS = Annotated[
    bool, typer.Option("--asynchronous", help="Permit schedules that update without waiting.")
]


@dataclass(frozen=True)
class Forced:
    """What flags say of stages; None: nothing."""

    stages: StagesLike | None
    schedule: str | None
    microbatches: int | None
    cuts: tuple[str, ...]
    asynchronous: bool = False

    def check(self) -> None:
        """Raise where there are no stages that the other flags could speak of."""
        others = {
            "schedule": self.schedule, "microbatches": self.microbatches, "cut": self.cuts,
            "asynchronous": self.asynchronous,
        }  # fmt: skip
        for flag, given in others.items():
            if given and self.stages in (None, 1):
                raise InputError(f"--{flag} speaks of stages: pass --stages auto, or how many.")

    def meant(self, shape: Mesh | int, hardware: Hardware, asked: Options) -> StagesLike:
        """Without a word: stages may help where devices are on several hosts, if axes are left open."""
        if self.stages is not None:
            return self.stages
        across = isinstance(shape, Mesh) and shape.world_size > hardware.devices_per_host
        return "auto" if across and not (asked.preset or asked.constraints) else 1


def read_stages(text: str | None) -> StagesLike | None:
    """``auto``, a number of stages, or a mesh for each: ``1+3``, ``2x2+4``."""
    if text is None or text == "auto":
        return "auto" if text else None
    try:
        if "+" not in text and "x" not in text:
            return int(text)
        return [tuple(int(size) for size in part.split("x")) for part in text.split("+")]
    except ValueError:
        raise InputError(
            f"Cannot read --stages {text!r}: write auto, a number such as 4, or a mesh for each stage "
            "such as 1+3 or 2x2+4."
        ) from None


def load_plan(path: Path) -> Plan | PipelinePlan:
    """A plan file of either kind."""
    try:
        content = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, ValueError, RecursionError):
        return Plan.load(path)  # it says what is wrong
    if isinstance(content, dict) and "actions" in content:
        return PipelinePlan.load(path)
    return Plan.load(path)


def save_stages(made: Staged, folder: Path) -> list[Path]:
    """A file per stage, and the schedule as a page."""
    plan = made.plan
    found = []
    for (stage, worker), source in sorted(made.sources.items()):
        several = len(plan.schedule.holders[stage]) > 1
        name = f"{plan.model}_stage{stage}" + (f"_worker{worker}" if several else "")
        found.append(save(source, folder / f"{name}.py"))
    found.append(save(schedule_page(plan), folder / f"{plan.model}_schedule.md"))
    return found


def staged_of(plan: PipelinePlan, model: str, batch: int | None, sequence: int | None) -> Staged:
    """The stages' sources of a plan, for the model that it was made for."""
    stages = split(microbatch_of(plan, model, batch, sequence), plan.cuts)
    plan.check(stages)
    sources = {
        (each.stage, each.worker): emit(each.plan, stages.graphs[each.stage], rules.localize)
        for each in plan.stages
    }
    return Staged(plan, stages, sources)


def microbatch_of(plan: PipelinePlan, model: str, batch: int | None, sequence: int | None) -> Graph:
    """The graph of one microbatch of the model; `PlanError` where the plan is of another."""
    loaded = load(model, batch, sequence)
    if not plan.stages:
        raise PlanError("The plan has no stages. Make a new one with `autopar plan`.")
    source = source_of(_compiler(plan, loaded), _batch(loaded))
    if plan.microbatches < 1 or source.batch % plan.microbatches:
        raise PlanError(
            f"The plan cuts a batch into {plan.microbatches} microbatches, which a batch of "
            f"{source.batch} cannot be. Pass --batch as it was planned for."
        )
    graph = source.parted(plan.microbatches)
    if graph.digest != plan.graph_digest:
        raise PlanError(
            f"The plan (graph {plan.graph_digest}) does not belong to {model} (graph {graph.digest}): "
            "other sizes, batch, version or code. Make a new one with `autopar plan`."
        )
    return graph


def _compiler(plan: PipelinePlan, loaded: Loaded) -> Compiler:
    precision = Precision.parse(plan.stages[0].plan.precision)
    bare = without_weights(loaded.model, precision.compute)
    options = Options(loss=loaded.loss, precision=precision)
    return Compiler(bare, plan.mesh, as_hardware("cpu"), options)


def _batch(loaded: Loaded) -> Mapping[str, object]:
    if not isinstance(loaded.inputs, Mapping):
        raise InputError(
            "A pipeline's model brings its example inputs as a dict of keyword arguments."
        )
    return loaded.inputs
