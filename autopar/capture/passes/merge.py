"""Merges equal constants and equal creation operators, and moves them to the front of the graph.

Every layer makes its own copy of the same small tensors. One copy is enough, and it makes layers
look identical.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from autopar.capture.passes.normal import CREATION
from autopar.capture.passes.rewriting import Tensors, rewrite
from autopar.ir.graph import Graph, Node, short

RANDOM = {"rand", "randn", "randint", "randperm", "empty"}


def merge_creation(graph: Graph) -> Graph:
    """Replace equal nodes by one, placed after the leaves."""
    first: dict[object, str] = {}
    uses = Counter(_key(node) for node in graph.nodes if _mergeable(node))

    def merged(node: Node, tensors: Tensors) -> str | None:
        if not _mergeable(node):
            return None
        name = first.setdefault(_key(node), node.outputs[0].name)
        return None if name == node.outputs[0].name else name

    result = rewrite(graph, merged)
    shared = [n for n in result.nodes if _mergeable(n) and (n.is_leaf or uses[_key(n)] > 1)]
    names = {node.name for node in shared}
    rest = [node for node in result.nodes if node.name not in names]
    leaves = [node for node in rest if node.is_leaf]
    others = [node for node in rest if not node.is_leaf]
    return replace(result, nodes=(*leaves, *shared, *others))


def _mergeable(node: Node) -> bool:
    if node.op == "constant":
        return True
    makes = node.op.startswith("aten.") and short(node.op) in CREATION - RANDOM
    return makes and not node.operands


def _key(node: Node) -> object:
    # repr distinguishes 1 from 1.0 and True, which compare equal
    return node.op, repr(node.args), repr(node.kwargs), node.outputs[0].shape, node.outputs[0].dtype
