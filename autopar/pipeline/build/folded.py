"""Folds a graph: keeps at most three copies of every repeated block, from which all costs are known.

The first copy has other producers, and the last copy has other readers.  All copies between them are
like the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autopar.capture import repeats
from autopar.capture.passes.rewriting import rename, renamed_ends
from autopar.ir.graph import Graph, Node

KEPT = 3
"""Copies kept of a repeated block: the first, the second, the last."""


@dataclass(frozen=True)
class Folded:
    """A folded graph; `stands_for` maps each operator of the whole graph to an equal kept one."""

    graph: Graph
    stands_for: Mapping[str, str]


def fold(graph: Graph) -> Folded:
    """Return the graph without the copies between the second and the last of every repeat."""
    gone: set[int] = set()
    stands: dict[str, str] = {node.name: node.name for node in graph.nodes}
    tensors: dict[str, str] = {}
    for repeat in repeats(graph):
        for copy in range(2, repeat.count - 1):
            gone.update(repeat.block(copy))
            for mine, second in zip(repeat.block(copy), repeat.block(1), strict=True):
                _stand_in(graph.nodes[second], graph.nodes[mine], stands, tensors)
    kept = [rename(node, tensors) for i, node in enumerate(graph.nodes) if i not in gone]
    ends = renamed_ends(graph, tensors)
    read = {name for node in kept for name in node.operands}
    made = {tensor.name for node in kept for tensor in node.outputs}
    before = {name for node in graph.nodes for name in node.operands}
    nodes = tuple(n for n in kept if not _is_left(n, before, read))
    alone = {node.target for node in nodes if node.op == "parameter"}
    folded = replace(
        ends,
        nodes=nodes,
        aliases=tuple(pair for pair in graph.aliases if pair[1] in alone),
        mutations=tuple(pair for pair in ends.mutations if pair[1] in made),
    )
    folded.check()
    return Folded(folded, stands)


def _stand_in(second: Node, mine: Node, stands: dict[str, str], tensors: dict[str, str]) -> None:
    stands[mine.name] = second.name
    for there, here in zip(mine.outputs, second.outputs, strict=True):
        tensors[there.name] = here.name


def _is_left(node: Node, before: set[str], read: set[str]) -> bool:
    """Return whether a leaf was read only by copies that were removed."""
    names = {tensor.name for tensor in node.outputs}
    return node.is_leaf and bool(names & before) and not names & read
