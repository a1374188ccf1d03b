"""Normalises operators, so that rules, cost models and emission handle fewer of them.

Casts become ``aten.to.dtype``. Everything that only regroups dims becomes ``aten.reshape.default``
with explicit sizes, because a view of a tensor that another pass made non-contiguous would fail.
Creation operators get an explicit dtype. In-place copies become the value that was copied.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.capture.passes.rewriting import Tensors, argument, rewrite, tensor_of
from autopar.ir.graph import Arg, DType, Graph, Node, Ref, short

CASTS = {
    "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten.to.other",
    "aten._to_copy.default", "aten.type_as.default",
}  # fmt: skip
RESHAPES = {
    "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default",
    "aten.flatten.using_ints", "aten.unflatten.int", "aten.view_as.default",
    "aten.reshape_as.default", "aten.ravel.default", "aten.atleast_1d.default",
    "aten.atleast_2d.default", "aten.atleast_3d.default",
}  # fmt: skip
CREATION = {
    "arange", "full", "zeros", "ones", "empty", "rand", "randn", "randint", "eye", "linspace",
    "scalar_tensor", "randperm",
}  # fmt: skip
FILLED = {
    "zeros_like": 0, "new_zeros": 0, "ones_like": 1, "new_ones": 1, "full_like": None, "new_full": None,
}  # fmt: skip
"""Operators that read only shape and dtype of a tensor; None means that the value is an argument."""
DRAWN = {
    "rand_like": "rand.default", "randn_like": "randn.default",
    "empty_like": "empty.memory_format", "new_empty": "empty.memory_format",
}  # fmt: skip
"""The same for operators whose values are not known."""


LAID_OUT = "aten.contiguous.default"


def normalise(graph: Graph) -> Graph:
    """Rewrite every node to its normal form."""
    return rewrite(graph, _spelled)


def _spelled(node: Node, tensors: Tensors) -> tuple[Node, ...] | None:
    if node.op in CASTS:
        args: tuple[Arg, ...] = (node.args[0], DType(node.outputs[0].dtype))
        return (replace(node, op="aten.to.dtype", args=args, kwargs=()),)
    if node.op in RESHAPES:
        args = (node.args[0], node.outputs[0].shape)
        return (replace(node, op="aten.reshape.default", args=args, kwargs=()),)
    if node.op == "aten.expand.default":
        return (replace(node, args=(node.args[0], node.outputs[0].shape), kwargs=()),)
    if node.op == "aten.expand_as.default":
        args = (node.args[0], node.outputs[0].shape)
        return (replace(node, op="aten.expand.default", args=args, kwargs=()),)
    if node.op == "aten.broadcast_tensors.default":
        return _broadcast(node)
    if node.op == "aten.slice.Tensor":
        return (replace(node, args=(node.args[0], *_bounds(node, 1, tensors)), kwargs=()),)
    if node.op == "aten.slice_scatter.default":
        return (replace(node, args=(*node.args[:2], *_bounds(node, 2, tensors)), kwargs=()),)
    if node.op in ("aten.copy.default", "aten.fill.Tensor"):
        return _copied(node, tensors)
    if node.op in ("aten.fill.Scalar", "aten.zero.default"):
        out = node.outputs[0]
        args = (out.shape, argument(node, 1, "value", 0))
        kwargs = (("dtype", DType(out.dtype)),)
        return (replace(node, op="aten.full.default", args=args, kwargs=kwargs),)
    if node.op.startswith("aten.") and short(node.op) in FILLED:
        return (_filled(node),)
    if node.op.startswith("aten.") and short(node.op) in DRAWN:
        out = node.outputs[0]
        op = f"aten.{DRAWN[short(node.op)]}"
        return (replace(node, op=op, args=(out.shape,), kwargs=(("dtype", DType(out.dtype)),)),)
    if node.op == "aten.group_norm.default":
        return _laid_out(node, tensors)
    if node.op in ("aten.repeat.default", "aten.tile.default"):
        return _repeated(node, tensors)
    if node.op.startswith("aten.") and short(node.op) in CREATION and not node.operands:
        typed = {**dict(node.kwargs), "dtype": DType(node.outputs[0].dtype)}
        return (replace(node, kwargs=tuple(typed.items())),)
    return None


def _laid_out(node: Node, tensors: Tensors) -> tuple[Node, ...] | None:
    """Make data row-major in front of a group norm, whatever views and copies the user's code made.

    Torch (2.13, CPU) ends the process in the backward of a group norm whose channels-last input has
    no gradient.
    """
    source = tensor_of(node.args[0], tensors)
    assert source is not None
    if source.differentiable:
        return None
    made = replace(source, name=f"{node.name}.laid_out")
    copy = Node(made.name, LAID_OUT, (Ref(source.name),), (), (made,), "", node.origin)
    return copy, replace(node, args=(Ref(made.name), *node.args[1:]))


def _filled(node: Node) -> Node:
    """Return a node that fills a tensor with a number and does not read the tensor it was made like."""
    out, kind = node.outputs[0], short(node.op)
    value = FILLED[kind]
    if value is None:
        given = argument(node, 2 if kind == "new_full" else 1, "fill_value")
        return replace(
            node,
            op="aten.full.default",
            args=(out.shape, given),
            kwargs=(("dtype", DType(out.dtype)),),
        )
    op = "aten.zeros.default" if value == 0 else "aten.ones.default"
    return replace(node, op=op, args=(out.shape,), kwargs=(("dtype", DType(out.dtype)),))


def _repeated(node: Node, tensors: Tensors) -> tuple[Node, ...] | None:
    """Rewrite ``x.repeat(8, 1)``: add a dim before each repeated one, expand it, and merge the two."""
    source, out = tensor_of(node.args[0], tensors), node.outputs[0]
    assert source is not None
    if 0 in out.shape:
        return None
    sizes = (*(1,) * (len(out.shape) - len(source.shape)), *source.shape)
    pairs = [(made // size, size) for made, size in zip(out.shape, sizes, strict=True)]
    apart = tuple(n for copies, size in pairs for n in ((1, size) if copies > 1 else (size,)))
    wide = tuple(n for copies, size in pairs for n in ((copies, size) if copies > 1 else (size,)))
    first = replace(out, name=f"{out.name}.apart", shape=apart)
    second = replace(out, name=f"{out.name}.wide", shape=wide)
    return (
        Node(
            first.name, "aten.reshape.default", (node.args[0], apart), (), (first,), "", node.origin
        ),
        Node(
            second.name,
            "aten.expand.default",
            (Ref(first.name), wide),
            (),
            (second,),
            "",
            node.origin,
        ),
        replace(node, op="aten.reshape.default", args=(Ref(second.name), out.shape), kwargs=()),
    )


def _broadcast(node: Node) -> tuple[Node, ...]:
    """Expand each tensor separately."""
    return tuple(
        Node(out.name, "aten.expand.default", (Ref(name), out.shape), (), (out,), "", node.origin)
        for name, out in zip(node.operands, node.outputs, strict=True)
    )


def _bounds(node: Node, at: int, tensors: Tensors) -> tuple[Arg, ...]:
    """Return a slice's dim, start and end, never negative and never beyond the size."""
    source = tensor_of(node.args[0], tensors)
    assert source is not None
    dim = argument(node, at, "dim", 0)
    assert isinstance(dim, int)
    dim %= len(source.shape)
    bounds = slice(argument(node, at + 1, "start"), argument(node, at + 2, "end"))
    start, end, _ = bounds.indices(source.shape[dim])
    step = argument(node, at + 3, "step", 1)
    return (dim, start, end, *(() if step == 1 else (step,)))


def _copied(node: Node, tensors: Tensors) -> tuple[Node, ...]:
    """Replace ``target.copy_(source)`` by the source in the target's dtype and shape."""
    source = tensor_of(node.args[1], tensors)
    assert source is not None
    out = node.outputs[0]
    out = replace(out, differentiable=source.differentiable and out.differentiable)
    cast = replace(out, name=f"{out.name}.cast", shape=source.shape)
    first = Node(cast.name, "aten.to.dtype", (Ref(source.name), DType(out.dtype)), (), (cast,))
    return (
        replace(first, origin=node.origin),
        replace(
            node,
            op="aten.expand.default",
            args=(Ref(cast.name), out.shape),
            kwargs=(),
            outputs=(out,),
        ),
    )
