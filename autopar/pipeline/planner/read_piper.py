"""Reads Piper's input files (github.com/msr-fiddle/piper, NeurIPS 2021).

In these files, the bytes of an edge are transferred forward and backward, and a layer can add bytes of
its own at a border.  Each of d replicas transfers 4 (d - 1) / d of its weights.  Memory is
`memoryUsageA` per microbatch in flight plus `memoryUsageB`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AliasChoices, Field

from autopar.errors import PlanError
from autopar.pipeline.planner.records import Record, record_of, refuse_wrong_ids
from autopar.pipeline.planner.workload import Layer, Option, Pool, Tensor, Workload

REDUCE_ROUNDS = 4.0
"""As with a parameter server; Piper and PipeDream count so."""
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Id = Annotated[int, Field(strict=True)]
FORMAT = "an input of Piper"


class Way(Record):
    """A way to run a layer; `syncTimeFw` and `syncTimeBw` are bytes by the layer at the other end."""

    id: str
    timePerSample: Amount
    parameterSize: Amount
    memoryUsageA: Amount
    memoryUsageB: Amount
    syncTimeFw: dict[int, Amount]
    syncTimeBw: dict[int, Amount]


class Node(Record):
    """A layer with its ways by tensor-parallel degree; `name` is debug information."""

    id: Id
    TMPCs: dict[Annotated[int, Field(ge=1)], tuple[Way, ...]]
    name: str = "layer"


class Edge(Record):
    """A tensor on its way to one reader, in bytes."""

    sourceId: Id
    destId: Id
    communicationCost: Amount


class Instance(Record):
    """A file.  Piper's description calls the number of microbatches `maxBatchSize`."""

    maxDevices: Annotated[int, Field(ge=0)]
    maxMemoryPerDevice: Annotated[float, Field(gt=0)]
    bandwidth: Annotated[float, Field(gt=0)]
    mbsInBatch: Annotated[
        int, Field(ge=1, validation_alias=AliasChoices("mbsInBatch", "maxBatchSize"))
    ]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def read_piper(
    text: str,
    devices: int | None = None,
    memory_nbytes: float | None = None,
    bytes_per_s: float | None = None,
) -> Workload:
    """Return the workload of a file; arguments that are not None replace the file's own limits."""
    read = record_of(Instance, text, FORMAT)
    refuse_wrong_ids([n.id for n in read.nodes], [(e.sourceId, e.destId) for e in read.edges])
    number = {node.id: index for index, node in enumerate(read.nodes)}
    tensors = tuple(
        Tensor(number[e.sourceId], (number[e.destId],), e.communicationCost, 2) for e in read.edges
    )
    edges = {(edge.sourceId, edge.destId): index for index, edge in enumerate(read.edges)}
    pool = Pool(
        "accelerator",
        devices or read.maxDevices,
        memory_nbytes or read.maxMemoryPerDevice,
        bytes_per_s or read.bandwidth,
    )
    layers = tuple(Layer(f"{node.name} {node.id}", _options(node, edges)) for node in read.nodes)
    return Workload(layers, tensors, (pool,), read.mbsInBatch, REDUCE_ROUNDS).check()


def unread_in_piper(text: str) -> Iterator[str]:
    """Yield the keys of a file that are not read, each with the place where it is."""
    return record_of(Instance, text, FORMAT).unread()


def _options(node: Node, edges: dict[tuple[int, int], int]) -> tuple[Option, ...]:
    return tuple(
        Option(
            name=way.id,
            devices=degree,
            forward_s=way.timePerSample,
            rest_nbytes=way.memoryUsageB,
            kept_nbytes=way.memoryUsageA,
            reduced_nbytes=way.parameterSize,
            resent=_resent(node, way, edges),
        )
        for degree, ways in node.TMPCs.items()
        for way in ways
    )


def _resent(
    node: Node, way: Way, edges: dict[tuple[int, int], int]
) -> tuple[tuple[int, float], ...]:
    """Return the bytes that a way adds to the tensors from earlier and to later layers."""
    ends = [
        *(("syncTimeFw", (other, node.id), nbytes) for other, nbytes in way.syncTimeFw.items()),
        *(("syncTimeBw", (node.id, other), nbytes) for other, nbytes in way.syncTimeBw.items()),
    ]
    for key, (source, target), _ in ends:
        if (source, target) not in edges:
            raise PlanError(
                f"{key} of {way.id!r} of node {node.id} names an edge from {source} to {target}, "
                "which is not among the edges"
            )
    return tuple(sorted((edges[edge], nbytes) for _, edge, nbytes in ends))
