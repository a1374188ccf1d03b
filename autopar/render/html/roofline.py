"""Computes a roofline: FLOP per byte and FLOP/s of each operator on one rank, and their bounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autopar.cost.operators import moved_nbytes
from autopar.ir.graph import Graph, bare
from autopar.ir.split import Stages
from autopar.memory.shards import split
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.rules import flops
from cost_models.hardware import Device, Hardware
from cost_models.ops import op_seconds


@dataclass(frozen=True, slots=True)
class Dot:
    """All forward calls of one operator with one size on one rank; `where` is the stage, if any."""

    name: str
    dtype: str
    calls: int
    flops: float
    nbytes: float
    seconds: float
    where: str = ""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Operators and the bounds on their speed; `peaks` are the FLOP/s of large operators, by dtype.

    `cache_bytes_per_s` is the bandwidth for small operators, 0 if the device has no such cache.
    """

    dots: tuple[Dot, ...]
    peaks: Mapping[str, float]
    bytes_per_s: float
    cache_bytes_per_s: float = 0.0


def roofline(plan: Plan, graph: Graph, hardware: Hardware) -> Roofline:
    """Return the roofline of a plan's forward, without operators that do no arithmetic."""
    device = _device(plan, hardware)
    return _roofed(tuple(_dots(plan, graph, device)), device)


def roofline_of_stages(plan: PipelinePlan, stages: Stages, hardware: Hardware) -> Roofline:
    """Return the roofline of one microbatch's forward, each stage on the first worker that holds it."""
    device = _device(plan, hardware)
    first = {each.stage: each.plan for each in reversed(plan.stages)}
    dots = (
        dot
        for stage, own in sorted(first.items())
        for dot in _dots(own, stages.graphs[stage], device, f"stage {stage}")
    )
    return _roofed(tuple(dots), device)


def _device(plan: Plan | PipelinePlan, hardware: Hardware) -> Device:
    """Return the device as one rank of a full host sees it: with its share of common resources."""
    return hardware.device_shared_by(min(plan.mesh.world_size, hardware.devices_per_host))


def _dots(plan: Plan, graph: Graph, device: Device, where: str = "") -> Iterator[Dot]:
    calls: defaultdict[tuple[str, str, float, int], int] = defaultdict(int)
    for node in graph.nodes:
        if not node.is_leaf:
            choice = plan.choice[node.name]
            done = flops(node, graph) / split(choice, plan.mesh)
            moved = moved_nbytes(node, choice, graph, plan.mesh)
            if done and moved:
                calls[bare(node.op), node.outputs[0].dtype, done, moved] += 1
    for (name, dtype, done, moved), count in calls.items():
        yield Dot(name, dtype, count, done, moved, op_seconds(done, moved, dtype, device), where)


def _roofed(dots: tuple[Dot, ...], device: Device) -> Roofline:
    used = {dot.dtype for dot in dots}
    peaks = {
        dtype: peak * device.matmul_efficiency
        for dtype, peak in device.flops_per_s.items()
        if dtype in used
    }
    cached = device.cache_bytes_per_s if device.cache_bytes else 0.0
    share = device.memory_efficiency
    return Roofline(dots, peaks, device.bytes_per_s * share, cached * share)
