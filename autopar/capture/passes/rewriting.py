"""The loop that all passes share: visit each node, replace it by others, and rename tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from autopar.ir.graph import Arg, Graph, Node, Ref, Tensor

Tensors = Mapping[str, Tensor]
Same = str
"""The name of a tensor that replaces a node's only output."""
Step = Callable[[Node, Tensors], "tuple[Node, ...] | Same | None"]
"""What a pass does with a node: new nodes (the last has its outputs), a replacement, or nothing."""


def rewrite(graph: Graph, step: Step) -> Graph:
    """Apply a step to every node; readers of a dropped tensor read its replacement."""
    renamed: dict[str, str] = {}
    tensors: dict[str, Tensor] = {}
    nodes: list[Node] = []
    for old in graph.nodes:
        node = rename(old, renamed)
        new = step(node, tensors)
        if isinstance(new, str):
            renamed[node.outputs[0].name] = new
            continue
        for made in new or (node,):
            nodes.append(made)
            tensors.update((tensor.name, tensor) for tensor in made.outputs)
    return replace(renamed_ends(graph, renamed), nodes=tuple(nodes))


def rename(node: Node, names: Mapping[str, str]) -> Node:
    """Return the node with renamed operands."""
    if not any(name in names for name in node.operands):
        return node
    args = cast("tuple[Arg, ...]", _renamed(node.args, names))
    kwargs = tuple((key, _renamed(value, names)) for key, value in node.kwargs)
    return replace(node, args=args, kwargs=kwargs)


def _renamed(arg: Arg, names: Mapping[str, str]) -> Arg:
    if isinstance(arg, Ref):
        return Ref(names.get(arg.name, arg.name))
    return tuple(_renamed(item, names) for item in arg) if isinstance(arg, tuple) else arg


def renamed_ends(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Return the graph with loss, outputs and mutations renamed; nodes are unchanged."""
    return replace(
        graph,
        loss=None if graph.loss is None else names.get(graph.loss, graph.loss),
        outputs=tuple((path, names.get(name, name)) for path, name in graph.outputs),
        mutations=tuple((key, names.get(name, name)) for key, name in graph.mutations),
    )


def tensor_of(arg: Arg, tensors: Tensors) -> Tensor | None:
    """Return the tensor that an argument refers to, or None."""
    return tensors[arg.name] if isinstance(arg, Ref) else None


def argument(node: Node, position: int, name: str, default: Arg = None) -> Arg:
    """Return an argument by position or keyword."""
    if position < len(node.args):
        return node.args[position]
    return dict(node.kwargs).get(name, default)
