"""Operators on one device: operations per byte against operations per second, and what bounds both."""

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
    """All calls of one operator of one size, forward, on one rank; `where` is the stage, if any."""

    name: str
    dtype: str
    calls: int
    flops: float
    nbytes: float
    seconds: float
    where: str = ""


@dataclass(frozen=True, slots=True)
class Roofline:
    """`peaks`: operations per second that large operators reach, by dtype.

    `cache_bytes_per_s` is that of small operators, 0 where the device has no such cache.
    """

    dots: tuple[Dot, ...]
    peaks: Mapping[str, float]
    bytes_per_s: float
    cache_bytes_per_s: float = 0.0


def roofline(plan: Plan, graph: Graph, hardware: Hardware) -> Roofline:
    """Of a plan's forward; operators that do no arithmetic are left out."""
    device = _device(plan, hardware)
    return _roofed(tuple(_dots(plan, graph, device)), device)


def roofline_of_stages(plan: PipelinePlan, stages: Stages, hardware: Hardware) -> Roofline:
    """Of one microbatch's forward through each stage, on the first worker that holds it."""
    device = _device(plan, hardware)
    first = {each.stage: each.plan for each in reversed(plan.stages)}
    dots = (
        dot
        for stage, own in sorted(first.items())
        for dot in _dots(own, stages.graphs[stage], device, f"stage {stage}")
    )
    return _roofed(tuple(dots), device)


def _device(plan: Plan | PipelinePlan, hardware: Hardware) -> Device:
    """As one of the ranks that fill a host has it."""
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
