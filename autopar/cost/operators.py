"""Seconds and saved bytes of an operator under a sharding."""

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
from cost_models.measured import Answer, Call, Source, Work

MIXTURE_CALLS = (30, 18), (60, 20)
"""What a forward and a backward of a mixture spend beside its products, in operator calls, and on each
expert (`autopar.ops.experts`): two to sixteen experts on 64 to 512 tokens (2026-11-25)."""
MIXTURE_PASSES = (4, 4), (8, 15)
"""How often they go through a row of a token's, and one behind the first product."""
LOOKUPS = frozenset(["embedding", "index_select", "gather"])
"""Operators that read as much of their first operand as they give, however large it is."""


@dataclass(frozen=True, slots=True)
class OperatorSeconds:
    """Compute of one operator on one rank, and the collectives of its local implementation."""

    forward_s: float
    backward_s: float
    collectives_s: float
    source: Source = "modelled"
    """Where the compute's seconds are from."""

    @property
    def total_s(self) -> float:
        """A training step's share of it."""
        return self.forward_s + self.backward_s + self.collectives_s


NOTHING = OperatorSeconds(0.0, 0.0, 0.0)


def operator_seconds(
    node: Node, sharding: OpSharding, graph: Graph, prices: Prices
) -> OperatorSeconds:
    """What a training step spends on one operator on one rank."""
    if node.is_leaf:
        return NOTHING
    traffic = variant_traffic(sharding.variant, node, sharding, graph, prices.mesh)
    spent = _computing(node, sharding, graph, prices)
    backward_s = spent.backward_s + _adding(node, sharding, graph, prices)
    return OperatorSeconds(
        spent.forward_s, backward_s, sum(map(prices.awaited, traffic)), spent.source
    )


def _adding(node: Node, sharding: OpSharding, graph: Graph, prices: Prices) -> float:
    """Seconds in which its gradients are added to those of others that read the same tensors."""
    seconds = 0.0
    for place in graph.adding.get(node.name, ()):
        tensor = graph.tensors[node.operands[place]]
        nbytes = local_nbytes(tensor, sharding.inputs[place], prices.mesh)
        seconds += prices.summed(nbytes, tensor.dtype)
    return seconds


def call_of(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> Call | None:
    """What one rank calls, as times are kept of it; None where it is not the operator alone."""
    local = local_call(node, sharding, graph, mesh)
    if local is None:
        return None
    forward, backward = _work(node, sharding, graph, mesh)
    return Call(node.op, local.text, local.family, forward, backward)


def _computing(node: Node, sharding: OpSharding, graph: Graph, prices: Prices) -> Answer:
    """Seconds of both passes: from times, where there are any, or by the roofline."""
    call = call_of(node, sharding, graph, prices.mesh) if prices.times else None
    if call is not None and prices.times is not None:
        return _paced(prices.times.of(call, prices.own), prices)
    forward, backward = _work(node, sharding, graph, prices.mesh)
    backward_s = 0.0 if backward is None else prices.work(backward)
    return Answer(prices.work(forward), backward_s, "modelled")


def _paced(own: Answer, prices: Prices) -> Answer:
    """With the waiting for slower ranks."""
    slower = 1 + prices.device.behind
    return replace(own, forward_s=own.forward_s * slower, backward_s=own.backward_s * slower)


def _work(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> tuple[Work, Work | None]:
    """What the passes do on one rank; None where there is no backward."""
    dtype, op = node.outputs[0].dtype, _timed_as(node, graph)
    ways = split(sharding, mesh)
    moved = moved_nbytes(node, sharding, graph, mesh)
    calls, between = _calls(node, sharding, graph, mesh), _between(node, graph)
    forward = Work(
        flops(node, graph) / ways, moved, dtype, op, calls=calls[0], between=between[0] / ways
    )
    if not any(tensor.differentiable for tensor in node.outputs):
        return forward, None
    back = backward_flops(node, graph) / ways
    filled = unread_nbytes(node, sharding, graph, mesh)
    return forward, Work(
        back, 2 * moved + filled, dtype, op, "backward", calls[1], between[1] / ways
    )


def _timed_as(node: Node, graph: Graph) -> str:
    """Its name among curves: attention is another operator where its bias has a gradient."""
    bias = [graph.tensors[name] for name in node.operands[3:]]
    if short(node.op) == "scaled_dot_product_attention" and any(b.differentiable for b in bias):
        return "autopar.biased_attention"
    return node.op


def _calls(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> tuple[int, int]:
    """Of torch's operators in both passes: experts of a mixture are gone through one by one."""
    if short(node.op) != "routed_experts":
        return 1, 1
    down, form = graph.tensors[node.operands[4]], sharding.inputs[4]
    experts = form.local_shape(down.shape, mesh)[0]
    forward, backward = (1 + once + each * experts for once, each in MIXTURE_CALLS)
    return forward, backward


def _between(node: Node, graph: Graph) -> tuple[int, int]:
    """Bytes that both passes read and write between the products that they are made of, on all ranks."""
    if short(node.op) != "routed_experts":
        return 0, 0
    x, chosen, _, up, _ = (graph.tensors[name] for name in node.operands)
    rows = math.prod(chosen.shape) * x.itemsize
    forward, backward = (
        rows * (outside * x.shape[1] + inside * up.shape[1]) for outside, inside in MIXTURE_PASSES
    )
    return forward, backward


def moved_nbytes(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> int:
    """What the forward of an operator reads and writes on one rank."""
    if short(node.op) in VIEWS:
        return 0
    operands = [graph.tensors[name] for name in node.operands]
    pairs = _pairs(operands, node.outputs, sharding)
    every = sum(local_nbytes(tensor, form, mesh) for tensor, form in pairs)
    return every - unread_nbytes(node, sharding, graph, mesh)


def unread_nbytes(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> int:
    """What a lookup leaves of its table; the gradient, which is dense, is zero there."""
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
