"""Operators without gradient that are worth splitting: a frozen trunk is as much work as a trained one.

Masks, positions and ids are cheap: they are computed whole on every rank, and a slice of them is free.
What reads a weight is not cheap, nor is a product over a dim of buffers or inputs, and neither is what
such results flow into.  What leaves the part that trains (a detached statistic, numbers of the chosen
experts) stays as cheap as it is where nothing is frozen.
"""

from __future__ import annotations

import math

from autopar.ir.graph import Graph, Node
from autopar.rules.work import flops

PRODUCT = 4
"""Operations per element made, from which an operator is a product over a dim."""


def worth_splitting(graph: Graph) -> frozenset[str]:
    """Names of the operators without gradient whose work is divided like that of trained ones."""
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
    """The outer product of a rotary table sums nothing; what multiplies matrices does."""
    made = sum(math.prod(tensor.shape) for tensor in node.outputs)
    return bool(node.operands) and flops(node, graph) >= PRODUCT * max(made, 1)
