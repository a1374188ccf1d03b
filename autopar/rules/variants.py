"""Local implementations that some factors' shards need (variants), and the collectives they issue.

vocab_parallel_embedding       rows of the table are split; misses give zeros, so the output is P
vocab_parallel_cross_entropy   classes are split; the loss is the same on all ranks, so I
expert_parallel                experts are split; each rank computes its own rows, so the output is P
expert_dispatch                tokens and experts are split; rows travel to their experts and back
sync_batch_norm                the batch is split; the statistics are those of the whole batch
sequence_parallel_attention    rows of causal attention are split; half of them are exchanged, so that
                               ranks see equally many keys
ring_attention                 keys and values are split with the rows, and pass from rank to rank
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from autopar.errors import RuleError
from autopar.ir.conversion import Traffic
from autopar.ir.graph import Graph, Node, Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, N, P, Type
from autopar.plans.decisions import OpSharding

ATTENTION, RING = "sequence_parallel_attention", "ring_attention"
ALONG_SEQUENCE = (ATTENTION, RING)
"""Causal attention whose rows are split."""
CONTIGUOUS = frozenset(
    {"vocab_parallel_embedding", "vocab_parallel_cross_entropy", "expert_parallel", *ALONG_SEQUENCE}
)
"""Variants that index from a rank's first row, class or expert: correct for contiguous blocks only."""
COUNT_ITEMSIZE = 8
"""Bytes of the number of rows for one expert."""
TrafficOf = Callable[[int, Node, OpSharding, Graph, Mesh], tuple[Traffic, ...]]


def output_letter(variant: str, tensor: Tensor) -> Type:
    """Return the type of an output that does not contain the split factor."""
    if variant in ("vocab_parallel_cross_entropy", "sync_batch_norm"):
        return I if tensor.differentiable else N
    return P


def variant_traffic(
    variant: str, node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh
) -> tuple[Traffic, ...]:
    """Return the collectives that the variant issues on one rank, forward and backward."""
    if not variant:
        return ()
    if variant not in _TRAFFIC:
        raise RuleError(f"Unknown variant {variant!r}; known are {', '.join(_TRAFFIC)}.")
    axis = sharding.variants.index(variant)
    if mesh.sizes[axis] == 1:
        return ()
    return _TRAFFIC[variant](axis, node, sharding, graph, mesh)


def _none(*_: object) -> tuple[Traffic, ...]:
    return ()


def _cross_entropy(
    axis: int, node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh
) -> tuple[Traffic, ...]:
    """Two all-reduces: each row's maximum, then its sum of exponentials and its target's logit."""
    logits = graph.tensors[node.operands[0]]
    rows = sharding.inputs[0].local_shape(logits.shape, mesh)[0]
    smoothing = node.args[4] if len(node.args) > 4 else 0.0
    stacked = 2 if smoothing == 0.0 else 3
    return tuple(
        Traffic(axis, "all_reduce", "forward", count * rows * logits.itemsize)
        for count in (1, stacked)
    )


def _batch_norm(
    axis: int, node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh
) -> tuple[Traffic, ...]:
    """Forward: sum, sum of squares and count in one all-reduce; backward, if any: two gradient sums."""
    tensor = graph.tensors[node.operands[0]]
    channels = sharding.inputs[0].local_shape(tensor.shape, mesh)[1]
    itemsize = max(tensor.itemsize, 4)
    forward = Traffic(axis, "all_reduce", "forward", (2 * channels + 1) * itemsize)
    backward = Traffic(axis, "all_reduce", "backward", 2 * channels * itemsize)
    return (forward, backward) if tensor.differentiable else (forward,)


def _row_attention(
    axis: int, node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh
) -> tuple[Traffic, ...]:
    """Exchange of half the rows and of their results, and backward of the gradients of both."""
    query = graph.tensors[node.operands[0]]
    samples, heads, rows, width = sharding.inputs[0].local_shape(query.shape, mesh)
    made = sharding.outputs[0].local_shape(node.outputs[0].shape, mesh)[3]
    half = samples * heads * (rows // 2) * query.itemsize
    if not half:
        return ()
    forward = tuple(Traffic(axis, "permute", "forward", half * w) for w in (width, made))
    backward = tuple(Traffic(axis, "permute", "backward", half * w) for w in (made, width))
    return (*forward, *backward) if node.outputs[0].differentiable else forward


@dataclass(frozen=True, slots=True)
class _Rows:
    """Bytes of an `expert_dispatch` on one rank, if all experts have equally many rows."""

    counts: int
    factors: int
    """The weights of the rows."""
    inputs: int
    results: int
    gradients: int
    of_inputs: int
    """Gradients of the inputs, which are in the dtype of the matrices, as results are."""
    numbers: int
    """The order and the counts of rows that are kept for the backward."""

    @staticmethod
    def of(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> _Rows:
        x, chosen, weights, up = (graph.tensors[name] for name in node.operands[:4])
        rows = math.prod(sharding.inputs[1].local_shape(chosen.shape, mesh))
        out = sharding.outputs[0].local_shape(node.outputs[0].shape, mesh)[1]
        experts = up.shape[0]
        return _Rows(
            experts * COUNT_ITEMSIZE,
            rows * weights.itemsize,
            rows * x.shape[1] * x.itemsize,
            rows * out * up.itemsize,
            rows * out * x.itemsize,
            rows * x.shape[1] * up.itemsize,
            (rows + 2 * experts + 1) * COUNT_ITEMSIZE,
        )


def _dispatch(
    axis: int, node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh
) -> tuple[Traffic, ...]:
    """Ranks exchange how many rows come; rows go to their experts and back, and their gradients too.

    In the backward the weights of the rows go with the gradients, and theirs come back.
    """
    rows = _Rows.of(node, sharding, graph, mesh)
    forward = [rows.counts, rows.inputs, rows.results]
    backward = [rows.gradients, rows.factors, rows.of_inputs, rows.factors]
    return (
        *(Traffic(axis, "all_to_all", "forward", nbytes) for nbytes in forward),
        *(Traffic(axis, "all_to_all", "backward", nbytes) for nbytes in backward),
    )


@dataclass(frozen=True, slots=True)
class Working:
    """Memory of a variant on one rank, in bytes.

    It keeps `kept` for the backward besides what the operator's shards keep, and allocates at least
    `forward` and `backward` bytes while it runs.
    """

    kept: int = 0
    forward: int = 0
    backward: int = 0


def variant_memory(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> Working:
    """Return the memory that the sharding's variant needs for messages; rows as in its traffic.

    Rows are sent from one tensor and received into another.  Gradients of inputs are sent from a copy.
    """
    if sharding.variant != "expert_dispatch":
        return Working()
    rows = _Rows.of(node, sharding, graph, mesh)
    back = max(2 * rows.gradients, 3 * rows.of_inputs)
    return Working(rows.inputs + rows.numbers, 2 * max(rows.inputs, rows.results), back)


def _ring(
    axis: int, node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh
) -> tuple[Traffic, ...]:
    """The same, while keys and values pass all ranks, and backward their gradients in a wide dtype."""
    around = _row_attention(axis, node, sharding, graph, mesh)
    halves = [[p for p in around if p.direction == way] for way in ("forward", "backward")]
    ranks, itemsize = mesh.sizes[axis], graph.tensors[node.operands[1]].itemsize
    elements = sum(
        math.prod(
            sharding.inputs[place].local_shape(graph.tensors[node.operands[place]].shape, mesh)
        )
        for place in (1, 2)
    )
    keys = Traffic(axis, "permute", "forward", elements * itemsize)
    forward = (*halves[0][:1], *[keys] * (ranks - 1), *halves[0][1:])
    if not node.outputs[0].differentiable:
        return forward
    again = replace(keys, direction="backward")
    sums = replace(again, nbytes=elements * max(itemsize, 4))
    return (
        *forward, *halves[1][:1], *[again, sums] * (ranks - 1), sums, *halves[1][1:],
    )  # fmt: skip


_TRAFFIC: Mapping[str, TrafficOf] = {
    "vocab_parallel_embedding": _none,
    "expert_parallel": _none,
    "expert_dispatch": _dispatch,
    "vocab_parallel_cross_entropy": _cross_entropy,
    "sync_batch_norm": _batch_norm,
    ATTENTION: _row_attention,
    RING: _ring,
}
