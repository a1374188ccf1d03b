"""Operators on one device: operations per byte against operations per second, and what bounds both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from autopar.graph import Graph, bare
from autopar.plans.plan import Plan
from autopar.pricing.operators import moved_nbytes, split
from autopar.rules import flops
from cost_models.hardware import Hardware
from cost_models.ops import op_seconds


@dataclass(frozen=True, slots=True)
class Dot:
    """All calls of one operator of one size, forward, on one rank."""

    name: str
    dtype: str
    calls: int
    flops: float
    nbytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """`peaks`: operations per second that large operators reach, by dtype."""

    dots: tuple[Dot, ...]
    peaks: Mapping[str, float]
    bytes_per_s: float


def roofline(plan: Plan, graph: Graph, hardware: Hardware) -> Roofline:
    """Of a plan's forward; operators that do no arithmetic are left out."""
    device = hardware.device_shared_by(min(plan.mesh.world_size, hardware.devices_per_host))
    calls: defaultdict[tuple[str, str, float, int], int] = defaultdict(int)
    for node in graph.nodes:
        if not node.is_leaf:
            choice = plan.choice[node.name]
            done = flops(node, graph) / split(choice, plan.mesh)
            moved = moved_nbytes(node, choice, graph, plan.mesh)
            if done and moved:
                calls[bare(node.op), node.outputs[0].dtype, done, moved] += 1
    dots = tuple(
        Dot(name, dtype, count, done, moved, op_seconds(done, moved, dtype, device))
        for (name, dtype, done, moved), count in calls.items()
    )
    used = {dot.dtype for dot in dots}
    peaks = {
        dtype: peak * device.matmul_efficiency
        for dtype, peak in device.flops_per_s.items()
        if dtype in used
    }
    return Roofline(dots, peaks, device.bytes_per_s * device.memory_efficiency)
