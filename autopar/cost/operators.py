"""Seconds of an operator under a sharding: from measured times if there are any, or the roofline."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from autopar.cost.prices import Prices
from autopar.ir.graph import Graph, Node, Tensor, short
from autopar.ir.mesh import Mesh
from autopar.ir.placement import Sharding
from autopar.memory.shards import VIEWS, local_nbytes, split
from autopar.plans.decisions import OpSharding
from autopar.rules import backward_flops, flops, local_call, variant_traffic
from autopar.rules.variants import ALONG_SEQUENCE, RING
from cost_models.measured import Answer, Call, Source, Work

MIXTURE_CALLS = (30, 18), (60, 20)
"""Forward and backward of a mixture of experts (`autopar.ops.experts`): operator calls besides its
products, as (fixed, per expert).  Measured with two to sixteen experts on 64 to 512 tokens."""
MIXTURE_PASSES = (4, 4), (8, 15)
"""Forward and backward of a mixture: passes over rows of (token width, width of the first product)."""
DISPATCH, DISPATCH_CALLS, DISPATCH_PASSES = "expert_dispatch", (16, 10), (4, 2)
"""A mixture whose tokens travel: operator calls besides its collectives, and passes over rows of token
width, more than those above.  Counted; rows that arrive are ordered, and those that leave."""
APART = frozenset(["expert_parallel", DISPATCH])
"""Local implementations whose ranks have experts of their own: all ranks wait for the most chosen."""
SEQUENCE_CALLS = (8, 12), (8, 16)
"""Forward and backward of attention of a split sequence: operator calls as (fixed, per block of keys),
estimated from `autopar/runtime/ring_attention.py` for rows that see all of a block."""
PRODUCTS = frozenset(["linear", "mm", "bmm", "matmul", "addmm", "baddbmm"])
"""Matrix products, whose efficiency varies with their dims."""
LOOKUPS = frozenset(["embedding", "index_select", "gather"])
"""Operators that read only as much of their first operand as they output."""


@dataclass(frozen=True, slots=True)
class OperatorSeconds:
    """Compute of one operator on one rank, and the collectives of its local implementation."""

    forward_s: float
    backward_s: float
    collectives_s: float
    source: Source = "modelled"
    """Source of the compute seconds."""

    @property
    def total_s(self) -> float:
        """Forward, backward and collectives together."""
        return self.forward_s + self.backward_s + self.collectives_s


NOTHING = OperatorSeconds(0.0, 0.0, 0.0)


def operator_seconds(
    node: Node, sharding: OpSharding, graph: Graph, prices: Prices
) -> OperatorSeconds:
    """Return the seconds that one operator takes on one rank in a microbatch's forward and backward."""
    if node.is_leaf:
        return NOTHING
    traffic = variant_traffic(sharding.variant, node, sharding, graph, prices.mesh)
    spent = _computing(node, sharding, graph, prices)
    backward_s = spent.backward_s + _adding(node, sharding, graph, prices)
    return OperatorSeconds(
        spent.forward_s, backward_s, sum(map(prices.awaited, traffic)), spent.source
    )


def _adding(node: Node, sharding: OpSharding, graph: Graph, prices: Prices) -> float:
    """Return the seconds to add its gradients to those of other readers of the same tensors."""
    seconds = 0.0
    for place in graph.adding.get(node.name, ()):
        tensor = graph.tensors[node.operands[place]]
        nbytes = local_nbytes(tensor, sharding.inputs[place], prices.mesh)
        seconds += prices.summed(nbytes, tensor.dtype)
    return seconds


def call_of(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> Call | None:
    """Return the call on one rank's shards, the key of measured times.

    None if the local implementation is more than the operator itself.
    """
    local = local_call(node, sharding, graph, mesh)
    if local is None:
        return None
    forward, backward = _work(node, sharding, graph, mesh)
    return Call(node.op, local.text, local.family, forward, backward)


def _computing(node: Node, sharding: OpSharding, graph: Graph, prices: Prices) -> Answer:
    """Return the seconds of both passes, from measured times if there are any, or by the roofline."""
    call = call_of(node, sharding, graph, prices.mesh) if prices.times else None
    if call is not None and prices.times is not None:
        return _paced(prices.times.of(call, prices.own), prices)
    forward, backward = _work(node, sharding, graph, prices.mesh)
    backward_s = 0.0 if backward is None else prices.work(backward)
    busiest = 1.0 + prices.device.expert_imbalance * (sharding.variant in APART)
    return Answer(busiest * prices.work(forward), busiest * backward_s, "modelled")


def _paced(own: Answer, prices: Prices) -> Answer:
    """Scale single-rank times by the wait for slower ranks."""
    slower = 1 + prices.device.behind
    return replace(own, forward_s=own.forward_s * slower, backward_s=own.backward_s * slower)


def _work(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> tuple[Work, Work | None]:
    """Return the work of forward and backward on one rank; the latter is None if there is none."""
    dtype, op = node.outputs[0].dtype, _timed_as(node, graph)
    ways = split(sharding, mesh)
    moved = moved_nbytes(node, sharding, graph, mesh)
    calls, between = _calls(node, sharding, graph, mesh), _between(node, sharding, graph)
    operations = flops(node, graph) / ways
    dims = _dims(node, sharding, graph, mesh, operations)
    forward = Work(
        operations, moved, dtype, op, calls=calls[0], between=between[0] / ways, dims=dims
    )
    if not any(tensor.differentiable for tensor in node.outputs):
        return forward, None
    back = backward_flops(node, graph) / ways
    filled = unread_nbytes(node, sharding, graph, mesh)
    return forward, Work(
        back, 2 * moved + filled, dtype, op, "backward", calls[1], between[1] / ways, dims
    )


def _dims(
    node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh, operations: float
) -> tuple[float, ...]:
    """Return the local dims by which efficiency varies: rows, columns and summed elements of a product
    of one rank's `operations`, or key length and head size of attention; empty for other operators."""
    name = short(node.op)
    if name == "scaled_dot_product_attention":
        query, key = (graph.tensors[each] for each in node.operands[:2])
        length = sharding.inputs[1].local_shape(key.shape, mesh)[-2]
        return float(length), float(query.shape[-1])
    if name not in PRODUCTS or len(node.outputs[0].shape) < 2:
        return ()
    made = sharding.outputs[0].local_shape(node.outputs[0].shape, mesh)
    elements = math.prod(made)
    if not elements:
        return ()
    batched = len(graph.tensors[node.operands[-1]].shape) > 2
    columns = made[-1]
    rows = made[-2] if batched else elements // columns
    return float(rows), float(columns), operations / (2.0 * elements)


def _timed_as(node: Node, graph: Graph) -> str:
    """Return its name in efficiency curves: attention has another one if its bias has a gradient."""
    bias = [graph.tensors[name] for name in node.operands[3:]]
    if short(node.op) == "scaled_dot_product_attention" and any(b.differentiable for b in bias):
        return "autopar.biased_attention"
    return node.op


def _calls(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> tuple[int, int]:
    """Return the torch operator calls of both passes.

    A mixture loops over its local experts, and attention of a split sequence over halves of its rows; in
    a ring also over the ranks.
    """
    if sharding.variant in ALONG_SEQUENCE:
        axis = sharding.variants.index(sharding.variant)
        steps = mesh.sizes[axis] if sharding.variant == RING else 1
        forward, backward = (once + each * steps for once, each in SEQUENCE_CALLS)
        return forward, backward
    if short(node.op) != "routed_experts":
        return 1, 1
    down, form = graph.tensors[node.operands[4]], sharding.inputs[4]
    experts = form.local_shape(down.shape, mesh)[0]
    more = DISPATCH_CALLS if sharding.variant == DISPATCH else (0, 0)
    forward, backward = (
        1 + once + each * experts + also
        for (once, each), also in zip(MIXTURE_CALLS, more, strict=True)
    )
    return forward, backward


def _between(node: Node, sharding: OpSharding, graph: Graph) -> tuple[int, int]:
    """Return the bytes that each pass reads and writes between its products, over all ranks."""
    if short(node.op) != "routed_experts":
        return 0, 0
    x, chosen, _, up = (graph.tensors[name] for name in node.operands[:4])
    rows = math.prod(chosen.shape) * x.itemsize
    more = DISPATCH_PASSES if sharding.variant == DISPATCH else (0, 0)
    forward, backward = (
        rows * ((outside + also) * x.shape[1] + inside * up.shape[1])
        for (outside, inside), also in zip(MIXTURE_PASSES, more, strict=True)
    )
    return forward, backward


def moved_nbytes(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> int:
    """Return the bytes that the forward of an operator reads and writes on one rank."""
    if short(node.op) in VIEWS:
        return 0
    operands = [graph.tensors[name] for name in node.operands]
    pairs = _pairs(operands, node.outputs, sharding)
    every = sum(local_nbytes(tensor, form, mesh) for tensor, form in pairs)
    return every - unread_nbytes(node, sharding, graph, mesh)


def unread_nbytes(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> int:
    """Return the bytes of a lookup's table that it does not read; the dense gradient is zero there."""
    if short(node.op) not in LOOKUPS:
        return 0
    table = local_nbytes(graph.tensors[node.operands[0]], sharding.inputs[0], mesh)
    found = local_nbytes(node.outputs[0], sharding.outputs[0], mesh)
    return max(0, table - found)


def _pairs(
    operands: Iterable[Tensor], outputs: Iterable[Tensor], sharding: OpSharding
) -> Iterable[tuple[Tensor, Sharding]]:
    yield from zip(operands, sharding.inputs, strict=True)
    yield from zip(outputs, sharding.outputs, strict=True)
