"""Copies a buffer that the step changes, for the nodes that read it with a gradient.

The step writes a buffer's new value after the forward pass, but autograd may save the old one for
the backward.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.capture import _torch
from autopar.capture.passes.rewriting import rename, renamed_ends
from autopar.ir.graph import Arg, Graph, Node, Ref
from autopar.ops.operators import callable_of

READS_NO_VALUE = frozenset(["autopar.batch_norm"])
"""Operators that save statistics of the batch, not the running statistics."""


def copy_changed_buffers(graph: Graph) -> Graph:
    """Insert a `clone` after each changed buffer whose memory a backward could save."""
    changed = {buffer for buffer, _ in graph.mutations}
    leaves = [node for node in graph.leaves("buffer") if node.target in changed]
    copied = {leaf.name: f"{leaf.name}.before" for leaf in leaves if _is_kept(leaf.name, graph)}
    if not copied:
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.append(node if node.is_leaf else rename(node, copied))
        if node.name in copied:
            (looks,) = node.outputs
            made = replace(looks, name=copied[node.name])
            args: tuple[Arg, ...] = (Ref(node.name),)
            nodes.append(Node(made.name, "aten.clone.default", args, (), (made,)))
    leading = [node for node in nodes if node.is_leaf]
    rest = [node for node in nodes if not node.is_leaf]
    return replace(renamed_ends(graph, copied), nodes=(*leading, *rest))


def _is_kept(name: str, graph: Graph) -> bool:
    """Return whether a result, or an operator with a gradient, reads a tensor or a view of it."""
    if name in graph.results:
        return True
    for node in graph.consumers.get(name, ()):
        if any(out.differentiable for out in node.outputs):
            if node.op not in READS_NO_VALUE:
                return True
        elif _is_view(node) and any(_is_kept(out.name, graph) for out in node.outputs):
            return True
    return False


def _is_view(node: Node) -> bool:
    return node.op.startswith("aten.") and _torch.is_view(callable_of(node.op))
