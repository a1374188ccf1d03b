"""Pipeline support of commands: parsing flags, and loading plan files with or without stages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from autopar import rules
from autopar.capture.saved import saved
from autopar.cli.early import read_stages
from autopar.cli.models import load
from autopar.cli.output import working
from autopar.emit import emit
from autopar.errors import InputError
from autopar.explain.explained import microbatch_for
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.split import Stages, split
from autopar.pipeline.build.staged import Staged
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.render.text.pipeline import schedule_page
from autopar.request.options import Options
from autopar.request.pipeline import Pipeline
from cost_models.files import text
from cost_models.hardware import Hardware

Shape = Mesh | tuple[Mesh, ...] | int
"""A mesh, several meshes to choose from, or a number of devices."""


def read_pipeline(
    stages: str | None,
    schedule: str | None,
    microbatches: int | None,
    cuts: Sequence[str] | None,
    asynchronous: bool = False,
) -> Pipeline | None:
    """Return the pipeline that the flags describe; None if they describe none.

    Raises `InputError` if there are flags of stages, but no stages.
    """
    count = read_stages(stages)
    others = {
        "schedule": schedule, "microbatches": microbatches, "cut": cuts,
        "asynchronous": asynchronous,
    }  # fmt: skip
    for flag, given in others.items():
        if given and count in (None, 1):
            raise InputError(f"--{flag} applies to stages only: pass --stages auto, or a number.")
    if count is None:
        return None
    return Pipeline(count, schedule, microbatches, tuple(cuts or ()), asynchronous)


def usual_pipeline(shape: Shape, hardware: Hardware, asked: Options) -> Pipeline:
    """Return ``auto`` stages on a mesh across hosts, if all options permit stages, else one stage."""
    across = isinstance(shape, Mesh) and shape.world_size > hardware.devices_per_host
    of_one_stage = asked.preset or asked.constraints or asked.compression
    return Pipeline("auto" if across and not of_one_stage else 1)


def load_plan(path: Path) -> Plan | PipelinePlan:
    """Load a plan file with or without stages."""
    try:
        content = json.loads(text(path))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError):
        return Plan.load(path)  # raises the error
    if isinstance(content, dict) and "actions" in content:
        return PipelinePlan.load(path)
    return Plan.load(path)


def stage_pages(made: Staged) -> dict[str, str]:
    """Return files by name: one module per stage and worker, and the schedule as a Markdown page."""
    plan, pages = made.plan, {}
    for (stage, worker), source in sorted(made.sources.items()):
        several = len(plan.schedule.holders[stage]) > 1
        name = f"{plan.model}_stage{stage}" + (f"_worker{worker}" if several else "")
        pages[f"{name}.py"] = source
    return pages | {f"{plan.model}_schedule.md": schedule_page(plan)}


def staged_of(plan: PipelinePlan, model: str, batch: int | None, sequence: int | None) -> Staged:
    """Return a pipeline's stages with their sources, given its model."""
    return staged(plan, microbatch_of(plan, model, batch, sequence))


def staged(plan: PipelinePlan, graph: Graph) -> Staged:
    """Return a pipeline's stages with their sources, given the graph of one microbatch."""
    stages = _parted(plan, graph)
    sources = {
        (each.stage, each.worker): emit(
            each.plan, stages.graphs[each.stage], rules.localize, saved(stages.graphs[each.stage])
        )
        for each in plan.stages
    }
    return Staged(plan, stages, sources)


def stages_of(plan: PipelinePlan, model: str, batch: int | None, sequence: int | None) -> Stages:
    """Return the graphs of a pipeline's stages, given its model, without emitting code."""
    return _parted(plan, microbatch_of(plan, model, batch, sequence))


def _parted(plan: PipelinePlan, graph: Graph) -> Stages:
    stages = split(graph, plan.cuts)
    plan.check(stages)
    return stages


def microbatch_of(plan: PipelinePlan, model: str, batch: int | None, sequence: int | None) -> Graph:
    """Return the graph of one microbatch; raise `PlanError` if the plan is of another model."""
    loaded = load(model, batch, sequence)
    with working("capturing the model"):
        return microbatch_for(plan, loaded.model, loaded.inputs, loaded.loss)
