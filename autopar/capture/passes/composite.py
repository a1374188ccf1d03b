"""Replaces torch's convenience operators by reshapes, joins and splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from autopar.capture.passes.rewriting import Tensors, argument, rewrite
from autopar.ir.graph import Arg, Graph, Node, Ref, Tensor, short

Step = Callable[[Node, Tensors], "tuple[Node, ...]"]


def spell_out(graph: Graph) -> Graph:
    """Replace each of them by the operators that it consists of."""

    def spelled(node: Node, tensors: Tensors) -> tuple[Node, ...] | None:
        step = _STEPS.get(short(node.op)) if node.op.startswith("aten.") else None
        return None if step is None else step(node, tensors)

    return rewrite(graph, spelled)


def _stacked(node: Node, tensors: Tensors) -> tuple[Node, ...]:
    """Rewrite ``vstack`` and similar operators: add dims, then concatenate."""
    kind, parts = short(node.op), []
    nodes: list[Node] = []
    for place, name in enumerate(node.operands):
        shape = _WIDENED[kind](tensors[name].shape)
        part = replace(
            tensors[name],
            name=f"{node.outputs[0].name}.part{place}",
            shape=shape,
            differentiable=tensors[name].differentiable and node.outputs[0].differentiable,
        )
        if shape == tensors[name].shape:
            parts.append(Ref(name))
            continue
        parts.append(Ref(part.name))
        nodes.append(_reshape(Ref(name), part, node))
    dim = {"hstack": 0 if len(node.outputs[0].shape) == 1 else 1, "column_stack": 1, "dstack": 2}
    args: tuple[Arg, ...] = (tuple(parts), dim.get(kind, 0))
    return (*nodes, replace(node, op="aten.cat.default", args=args, kwargs=()))


def _two(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1, *shape) if len(shape) == 1 else shape or (1, 1)


def _three(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*_two(shape), 1) if len(shape) < 3 else shape


def _columns(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*(shape or (1,)), 1) if len(shape) < 2 else shape


_WIDENED: Mapping[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "hstack": lambda shape: shape or (1,),
    "vstack": _two,
    "row_stack": _two,
    "dstack": _three,
    "column_stack": _columns,
}


def _reshape(source: Ref, made: Tensor, node: Node) -> Node:
    args: tuple[Arg, ...] = (source, made.shape)
    return Node(made.name, "aten.reshape.default", args, (), (made,), "", node.origin)


def _grid(node: Node, tensors: Tensors) -> tuple[Node, ...]:
    """Rewrite ``meshgrid``: each tensor along its own dim, expanded over the others."""
    nodes: list[Node] = []
    swapped = argument(node, 1, "indexing", "ij") == "xy"
    for place, (name, out) in enumerate(zip(node.operands, node.outputs, strict=True)):
        dim = {0: 1, 1: 0}.get(place, place) if swapped and len(node.outputs) > 1 else place
        shape = tuple(size if i == dim else 1 for i, size in enumerate(out.shape))
        along = replace(out, name=f"{out.name}.along", shape=shape)
        nodes.append(_reshape(Ref(name), along, node))
        args: tuple[Arg, ...] = (Ref(along.name), out.shape)
        nodes.append(Node(out.name, "aten.expand.default", args, (), (out,), "", node.origin))
    return tuple(nodes)


def _split(node: Node, tensors: Tensors) -> tuple[Node, ...]:
    """Rewrite ``hsplit`` and similar operators as a split with the sizes of the parts."""
    kind, rank = short(node.op), len(node.outputs[0].shape)
    dims: Mapping[str, Arg] = {"hsplit": 0 if rank == 1 else 1, "vsplit": 0, "dsplit": 2}
    dim = dims.get(kind, argument(node, 2, "dim", 0))
    assert isinstance(dim, int)
    sizes = tuple(out.shape[dim] for out in node.outputs)
    args: tuple[Arg, ...] = (node.args[0], sizes, dim)
    return (replace(node, op="aten.split_with_sizes.default", args=args, kwargs=()),)


def _flipped(node: Node, tensors: Tensors) -> tuple[Node, ...]:
    dims = (1,) if short(node.op) == "fliplr" else (0,)
    return (replace(node, op="aten.flip.default", args=(node.args[0], dims), kwargs=()),)


_STEPS: Mapping[str, Step] = {
    **dict.fromkeys(_WIDENED, _stacked),
    **dict.fromkeys(
        ("hsplit", "vsplit", "dsplit", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"),
        _split,
    ),
    "meshgrid": _grid,
    "fliplr": _flipped,
    "flipud": _flipped,
}
