"""Drops nodes that no result reads. Parameters, buffers and inputs stay: they are the interface."""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.graph import Graph, Node


def drop_dead(graph: Graph) -> Graph:
    """Keep the nodes that the results need, and all leaves except unused constants."""
    needed = set(graph.results)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        interface = node.is_leaf and node.op != "constant"
        if interface or any(tensor.name in needed for tensor in node.outputs):
            kept.append(node)
            needed.update(node.operands)
    return replace(graph, nodes=tuple(reversed(kept)))
