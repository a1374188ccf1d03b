"""Renders the solution of a pipeline workload: the stages and their loads."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from autopar.ir.units import seconds
from autopar.pipeline.planner.throughput import LoadedStage, ThroughputPlan
from autopar.pipeline.planner.workload import Workload
from autopar.render.text.table import row, table


def loaded(workload: Workload, found: ThroughputPlan, took_s: float) -> RenderableType:
    """Return the load, then a table with one row per stage."""
    made = table(
        "stages", "layers", "devices", "replicas", "in flight", "load",
        right=("devices", "replicas", "in flight", "load"),
    )  # fmt: skip
    for number, stage in enumerate(found.stages):
        devices = f"{stage.devices} {workload.pools[stage.pool].name}"
        counts = (devices, str(stage.replicas), str(stage.in_flight), seconds(stage.load_s))
        row(made, str(number), _layers(workload, stage), *counts)
    facts = Table.grid(padding=(0, 2))
    row(
        facts,
        "load",
        f"{seconds(found.load_s)} per microbatch, the least of {found.ranges} ranges",
    )
    row(facts, "solved in", seconds(took_s))
    return Group(facts, made)


def _layers(workload: Workload, stage: LoadedStage) -> str:
    """Return the number of layers, and the first and the last; with branches they have gaps."""
    names = [workload.layers[layer].name for layer in stage.layers]
    few = names if len(names) < 3 else [names[0], "...", names[-1]]
    return f"{len(names)}: {', '.join(few)}"
