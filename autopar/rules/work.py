"""Floating-point operations of one operator on the whole tensors."""

from __future__ import annotations

import math

from autopar.graph import Graph, Node, short
from autopar.rules.declare import rule_of

_CONTRACTIONS = {"linear", "addmm", "mm", "bmm", "matmul", "baddbmm", "conv1d", "conv2d", "conv3d"}


def flops(node: Node, graph: Graph) -> int:
    """Forward multiplications and additions: two per point of a contraction's iteration space."""
    kind = short(node.op)
    if node.is_leaf:
        return 0
    if kind in _CONTRACTIONS:
        return 2 * _points(node, graph)
    if kind == "scaled_dot_product_attention":
        query, key, value = (graph.tensors[name].shape for name in node.operands[:3])
        pairs = math.prod(query[:-1]) * key[-2]
        return 2 * pairs * (query[-1] + value[-1])
    return sum(math.prod(tensor.shape) for tensor in node.outputs)


def _points(node: Node, graph: Graph) -> int:
    """Size of the iteration space: output positions times what each of them sums."""
    if short(node.op).startswith("conv"):
        weight = graph.tensors[node.operands[1]].shape
        return math.prod(node.outputs[0].shape) * math.prod(weight[1:])
    instance = rule_of(node, graph)
    summed = math.prod(instance.sizes[f] for f in instance.rule.summed)
    return math.prod(node.outputs[0].shape) * summed
