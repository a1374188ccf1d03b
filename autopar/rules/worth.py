"""Selects operators without gradient that are worth splitting, such as those of a frozen trunk.

Masks, positions and ids are cheap: every rank computes them whole, and a slice of them is free.
Operators that read a weight are not cheap, nor are products over a dim of buffers or inputs, nor
operators that consume such results.  Outputs detached from the trained part (a statistic, the indices
of the chosen experts) do not count as expensive, so they are treated as without any frozen part.
"""

from __future__ import annotations

import math

from autopar.ir.graph import Graph, Node
from autopar.rules.work import flops

PRODUCT = 4
"""Operations per output element from which an operator counts as a product over a dim."""


def worth_splitting(graph: Graph) -> frozenset[str]:
    """Return the names of operators without gradient that may be split like operators with one."""
    found: set[str] = set()
    busy = {
        tensor.name
        for node in graph.leaves("received")
        for tensor in node.outputs
        if "float" in tensor.dtype
    }
    for node in graph.nodes:
        if node.is_leaf or any(tensor.differentiable for tensor in node.outputs):
            continue
        if _reads_weight(node, graph) or _is_product(node, graph) or busy & set(node.operands):
            found.add(node.name)
            busy.update(tensor.name for tensor in node.outputs)
    return frozenset(found)


def _reads_weight(node: Node, graph: Graph) -> bool:
    return any(graph.producer[name].op == "parameter" for name in node.operands)


def _is_product(node: Node, graph: Graph) -> bool:
    """Whether the operator sums over a dim, as a matrix product does and an outer product does not."""
    made = sum(math.prod(tensor.shape) for tensor in node.outputs)
    return bool(node.operands) and flops(node, graph) >= PRODUCT * max(made, 1)
