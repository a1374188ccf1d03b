"""Rewrites literal sizes in arguments of views, expansions and splits to one rank's sizes."""

from __future__ import annotations

from itertools import accumulate

from autopar.ir.graph import Arg, Graph, Node, short
from autopar.ir.mesh import Mesh
from autopar.plans.decisions import OpSharding

Local = tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]
_SHAPED = {"view", "reshape", "expand", "broadcast_to", "_unsafe_view", "new_zeros", "new_ones"}
_CREATED = {"zeros", "ones", "full", "empty", "rand", "randn"}
_CONVOLUTIONS = {
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
}  # fmt: skip


def localize(node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh) -> Local:
    """Return the node's arguments on one rank's shards."""
    if not sharding.outputs:
        return node.args, node.kwargs
    made = tuple(
        form.local_shape(tensor.shape, mesh)
        for tensor, form in zip(node.outputs, sharding.outputs, strict=True)
    )
    args, kwargs = with_sizes(node, made)
    if short(node.op) == "slice":
        return tuple(_slice(node, list(args))), kwargs
    if short(node.op) == "group_norm" or (short(node.op) in _CONVOLUTIONS and len(args) > 6):
        return tuple(_groups(node, sharding, graph, mesh, list(args))), kwargs
    return args, kwargs


def with_sizes(node: Node, made: tuple[tuple[int, ...], ...]) -> Local:
    """Return the node's arguments for outputs of the given shapes: one rank's, or padded ones."""
    kind = short(node.op)
    args, kwargs = list(node.args), node.kwargs
    if kind in _SHAPED and isinstance(args[1], tuple):
        args[1] = made[0]
    elif kind in _CREATED:
        args[0] = made[0]
    elif kind == "unflatten":
        sizes = args[2] if isinstance(args[2], tuple) else ()
        dim = _dim(args[1], len(made[0]) - len(sizes) + 1)
        args[2] = made[0][dim : dim + len(sizes)]
    elif kind in ("split", "split_with_sizes", "tensor_split"):
        dim = _dim(args[2] if len(args) > 2 else dict(kwargs).get("dim", 0), len(made[0]))
        args[1] = _parts(kind, args[1], tuple(shape[dim] for shape in made))
    return tuple(args), kwargs


def _groups(
    node: Node, sharding: OpSharding, graph: Graph, mesh: Mesh, args: list[Arg]
) -> list[Arg]:
    """Replace the number of channel groups by one rank's."""
    read, *weights = (
        form.local_shape(graph.tensors[name].shape, mesh)
        for name, form in zip(node.operands, sharding.inputs, strict=True)
    )
    whole = graph.tensors[node.operands[0]].shape
    if short(node.op) == "group_norm":
        groups = args[1]
        assert isinstance(groups, int)
        args[1] = groups * read[1] // whole[1]
        return args
    transposed = "transpose" in node.op
    space = len(weights[0]) - 2
    channels = sharding.outputs[0].local_shape(node.outputs[0].shape, mesh) if transposed else read
    args[6] = channels[-space - 1] // weights[0][1]
    return args


def _parts(kind: str, given: Arg, sizes: tuple[int, ...]) -> Arg:
    """Return a split's argument in its original form: one size, all sizes, a number, or offsets."""
    if kind == "tensor_split":
        return tuple(accumulate(sizes[:-1])) if isinstance(given, tuple) else given
    return sizes[0] if isinstance(given, int) else sizes


def _dim(arg: Arg, rank: int) -> int:
    return arg % rank if isinstance(arg, int) else 0


def _slice(node: Node, args: list[Arg]) -> list[Arg]:
    """Return the arguments of a slice unchanged: the sliced dim is never split."""
    dim = _dim(args[1] if len(args) > 1 else 0, len(node.outputs[0].shape))
    args = [*args]
    if len(args) > 1:
        args[1] = dim
    return args
