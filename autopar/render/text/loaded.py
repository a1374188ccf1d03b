"""Renders the solution of a pipeline workload: load, bound, the stages and their loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from autopar.ir.units import seconds
from autopar.pipeline.planner.throughput import LoadedStage, ThroughputPlan
from autopar.pipeline.planner.workload import Workload
from autopar.render.text.proof import OPTIMAL
from autopar.render.text.table import row, table

LONGEST_NAME = 24


def loaded(
    workload: Workload, found: ThroughputPlan, took_s: float, unread: Sequence[str] = ()
) -> RenderableType:
    """Return the load, the bound and how they were found, then a table with one row per stage.

    `unread` are the keys of the file that were not read.
    """
    is_optimal = found.gap <= OPTIMAL
    facts = Table.grid(padding=(0, 2))
    best = "the least of all splits" if is_optimal else "the least that was found"
    row(facts, "load", f"{precise(found.load_s)} per microbatch, {best}")
    if found.load_s > 0:
        row(facts, "throughput", f"{1 / found.load_s:.6g} microbatches per second")
    gap = "optimal" if is_optimal else f"within {max(found.gap, 1e-4):.2%} of optimal"
    row(facts, "bound", f"{precise(found.bound_s)}, {gap}")
    row(facts, "found by", f"{found.method}; {found.ranges:,} ranges were compared")
    if unread:
        row(facts, "not read", ", ".join(unread))
    row(facts, "solved in", seconds(took_s))
    return Group(facts, _stages(workload, found.stages))


def precise(value: float) -> str:
    """Format seconds with six digits, as ``32.9107 ms``."""
    scale, unit = (1.0, "s") if value >= 1 or value == 0 else (1e3, "ms")
    text = f"{value * scale:.6g}"
    return f"{text if '.' in text or 'e' in text else text + '.0'} {unit}"


def _stages(workload: Workload, stages: Sequence[LoadedStage]) -> Table:
    has_options = any(name for stage in stages for name in stage.options)
    columns = ["stages", "layers", "devices", "replicas", "in flight", "load"]
    made = table(
        *columns, *(["options"] if has_options else []),
        right=("devices", "replicas", "in flight", "load"),
    )  # fmt: skip
    for number, stage in enumerate(stages):
        devices = f"{stage.devices} {workload.pools[stage.pool].name}"
        counts = (devices, str(stage.replicas), str(stage.in_flight), seconds(stage.load_s))
        options = [_options(stage)] if has_options else []
        row(made, str(number), _layers(workload, stage), *counts, *options)
    return made


def _layers(workload: Workload, stage: LoadedStage) -> str:
    """Return the number of layers, and the first and the last; with branches they have gaps."""
    names = [_shortened(workload.layers[layer].name) for layer in stage.layers]
    few = names if len(names) < 3 else [names[0], "...", names[-1]]
    return f"{len(names)}: {', '.join(few)}"


def _shortened(name: str) -> str:
    """Return a long name without its middle."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}...{name[-half:]}"


def _options(stage: LoadedStage) -> str:
    """Return the name of the option of all layers, or each with the number of its layers."""
    counts = Counter(stage.options)
    if len(counts) == 1:
        return stage.options[0]
    return ", ".join(f"{name} x{count}" for name, count in counts.items())
