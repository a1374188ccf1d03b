"""Reads input files of dnn-partitioning (github.com/msr-fiddle/dnn-partitioning, NeurIPS 2020).

A layer runs on one accelerator or one CPU.  A tensor that crosses an accelerator's border costs its
`cost` there once, however many layers read it.  Transfers of CPUs are free.  Layers of one
`colorClass` share a device, which ties a backward layer to its forward layer.  Times are milliseconds
in the files and seconds in the workload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from autopar.errors import PlanError
from autopar.pipeline.planner.records import Record, record_of, refuse_wrong_ids
from autopar.pipeline.planner.workload import Layer, Option, Pool, Tensor, Workload

ACCELERATOR, CPU = 0, 1
SAME_COST_MS = 1e-6
"""Costs of one tensor may differ by this, as in the authors' program."""
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Flag = Literal[0, 1, False, True]
Id = Annotated[int, Field(strict=True)]
FORMAT = "an input of dnn-partitioning"


class Node(Record):
    """A layer or operator.  `name` and `layerId` are debug information."""

    id: Id
    supportedOnFpga: Flag
    cpuLatency: Amount
    fpgaLatency: Amount
    isBackwardNode: Flag
    colorClass: int | str | None = None
    size: Amount = 0.0
    name: str = "node"
    layerId: int | str | None = None


class Edge(Record):
    """A tensor on its way to one reader; `size` is debug information."""

    sourceId: Id
    destId: Id
    cost: Amount
    size: float | None = None


class Instance(Record):
    """A file."""

    maxSizePerFPGA: Annotated[float, Field(gt=0)]
    maxFPGAs: Annotated[int, Field(ge=0)]
    maxCPUs: Annotated[int, Field(ge=0)]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def read_dnn_partitioning(text: str) -> Workload:
    """Return the workload of a file: pool 0 has the accelerators, pool 1 the CPUs."""
    return _workload(record_of(Instance, text, FORMAT)).check()


def unread_in_dnn_partitioning(text: str) -> Iterator[str]:
    """Yield the keys of a file that are not read, each with the place where it is."""
    return record_of(Instance, text, FORMAT).unread()


def _workload(read: Instance) -> Workload:
    refuse_wrong_ids([n.id for n in read.nodes], [(e.sourceId, e.destId) for e in read.edges])
    number = {node.id: index for index, node in enumerate(read.nodes)}
    for edge in read.edges:
        source, target = read.nodes[number[edge.sourceId]], read.nodes[number[edge.destId]]
        if source.isBackwardNode and not target.isBackwardNode:
            raise PlanError(
                f"node {target.id} is a forward node and reads the backward node {source.id}; check "
                "isBackwardNode of both"
            )
    pools = (
        Pool("accelerator", read.maxFPGAs, read.maxSizePerFPGA, replicas=False),
        Pool("cpu", read.maxCPUs, pays_transfers=False, replicas=False),
    )
    return Workload(tuple(map(_layer, read.nodes)), _tensors(read, number), pools)


def _layer(node: Node) -> Layer:
    group = None if node.colorClass is None else str(node.colorClass)
    return Layer(f"{node.name} {node.id}", _options(node), group, bool(node.isBackwardNode))


def _tensors(read: Instance, number: dict[int, int]) -> tuple[Tensor, ...]:
    readers: dict[int, list[int]] = {}
    costs: dict[int, float] = {}
    for edge in read.edges:
        cost = costs.setdefault(edge.sourceId, edge.cost)
        if abs(cost - edge.cost) > SAME_COST_MS:
            raise PlanError(
                f"node {edge.sourceId} has outgoing edges of different costs, {cost} ms and "
                f"{edge.cost} ms; a tensor is sent once, at one cost"
            )
        readers.setdefault(edge.sourceId, []).append(number[edge.destId])
    return tuple(
        Tensor(number[source], tuple(targets), seconds=costs[source] / 1e3)
        for source, targets in readers.items()
    )


def _options(node: Node) -> tuple[Option, ...]:
    """Return a node's options: its whole time counts as forward or as backward."""
    on_cpu = _timed(Option(pool=CPU), node, node.cpuLatency)
    on_accelerator = _timed(Option(rest_nbytes=node.size), node, node.fpgaLatency)
    return (on_accelerator, on_cpu) if node.supportedOnFpga else (on_cpu,)


def _timed(option: Option, node: Node, latency_ms: float) -> Option:
    seconds = latency_ms / 1e3
    if node.isBackwardNode:
        return replace(option, input_grad_s=seconds)
    return replace(option, forward_s=seconds)
