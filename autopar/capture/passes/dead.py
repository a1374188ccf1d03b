"""Drop nodes that no result reads; parameters and inputs stay, they belong to the interface."""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.graph import Graph, Node


def drop_dead(graph: Graph) -> Graph:
    """Keep what the results need.  Unused leaves stay except constants."""
    needed = set(graph.results)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        interface = node.is_leaf and node.op != "constant"
        if interface or any(tensor.name in needed for tensor in node.outputs):
            kept.append(node)
            needed.update(node.operands)
    return replace(graph, nodes=tuple(reversed(kept)))
