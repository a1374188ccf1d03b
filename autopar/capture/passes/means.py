"""Rewrites mean losses as sum / count, so that every reduction is a pure sum.

A sum can be split over shards without knowing their number. The count of valid targets is a tensor
of its own, which is sharded in the same way. The rewrite follows torch's definitions exactly: the
mean of a class-index cross-entropy divides both the plain and the smoothed part by the (weighted)
count of targets that are not ignored.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from autopar.capture.passes.rewriting import Tensors, argument, rename, rewrite, tensor_of
from autopar.ir.graph import Arg, DType, Graph, Node, Ref, Tensor

MEAN, SUM = 1, 2
"""torch's codes for `reduction`."""
REDUCTION_AT = {
    "aten.mse_loss.default": 2, "aten.l1_loss.default": 2, "aten.smooth_l1_loss.default": 2,
    "aten.huber_loss.default": 2, "aten.binary_cross_entropy.default": 3,
    "aten.binary_cross_entropy_with_logits.default": 4, "aten.kl_div.default": 2,
    "aten.soft_margin_loss.default": 2, "aten.margin_ranking_loss.default": 4,
    "aten.hinge_embedding_loss.default": 3, "aten.poisson_nll_loss.default": 5,
}  # fmt: skip
"""Position of `reduction` in elementwise losses; the mean divides by the number of elements."""
OF_ROWS_AT = {
    "aten.cosine_embedding_loss.default": 4, "aten.triplet_margin_loss.default": 7,
    "aten.multi_margin_loss.default": 5, "aten.multilabel_margin_loss.default": 2,
}  # fmt: skip
"""Position of `reduction` in losses over the last dim; the mean divides by the number of rows."""
LOSSES = {
    *REDUCTION_AT, *OF_ROWS_AT, "aten.cross_entropy_loss.default", "aten.nll_loss_nd.default",
    "aten.nll_loss.default",
}  # fmt: skip
LOW = ("float16", "bfloat16")


def split_means(graph: Graph) -> Graph:
    """Replace every mean over all elements by a sum and a division."""
    return rewrite(graph, _split)


def _split(node: Node, tensors: Tensors) -> tuple[Node, ...] | None:
    if node.op in LOSSES and node.outputs[0].dtype == "float16":
        return _widened(node, tensors)
    if node.op == "aten.cross_entropy_loss.default":
        return _cross_entropy(node, tensors)
    if node.op == "aten.nll_loss_nd.default" or node.op == "aten.nll_loss.default":
        return _nll(node, tensors)
    place = (REDUCTION_AT | OF_ROWS_AT).get(node.op)
    if place is not None and argument(node, place, "reduction", MEAN) == MEAN:
        return _summed(node, tensors, place)
    if node.op in ("aten.mean.default", "aten.mean.dim"):
        return _mean(node, tensors)
    return None


def _cross_entropy(node: Node, tensors: Tensors) -> tuple[Node, ...] | None:
    logits, target = node.args[:2]
    weight = argument(node, 2, "weight")
    reduction = argument(node, 3, "reduction", MEAN)
    ignore_index = argument(node, 4, "ignore_index", -100)
    smoothing = argument(node, 5, "label_smoothing", 0.0)
    if reduction not in (MEAN, SUM):
        return None
    shape, labels = _tensor(logits, tensors).shape, _tensor(target, tensors)
    if "int" not in labels.dtype:
        if reduction == SUM:
            return None
        summed = _part(node, "aten.cross_entropy_loss.default", "sum")
        args: tuple[Arg, ...] = (logits, target, weight, SUM, ignore_index, smoothing)
        batch = math.prod(shape) // shape[1 if len(shape) > 1 else 0]
        return replace(summed, args=args), _divided(node, summed, batch)
    args = (logits, target, weight, ignore_index, smoothing)
    if reduction == SUM:
        return (replace(node, op="autopar.cross_entropy_sum", args=args, kwargs=()),)
    summed = replace(_part(node, "autopar.cross_entropy_sum", "sum"), args=args)
    return _over_count(node, summed, target, ignore_index, weight, tensors)


def _nll(node: Node, tensors: Tensors) -> tuple[Node, ...] | None:
    if argument(node, 3, "reduction", MEAN) != MEAN:
        return None
    scores, target = node.args[:2]
    weight, ignore_index = argument(node, 2, "weight"), argument(node, 4, "ignore_index", -100)
    summed = replace(_part(node, node.op, "sum"), args=(scores, target, weight, SUM, ignore_index))
    return _over_count(node, summed, target, ignore_index, weight, tensors)


def _over_count(
    node: Node, summed: Node, target: Arg, ignore_index: Arg, weight: Arg, tensors: Tensors
) -> tuple[Node, ...]:
    """Return the nodes of sum / count of valid targets, each counted with its class weight if given."""
    weights = tensor_of(weight, tensors)
    name = f"{node.name}.count"
    out = Tensor(name, (), "int64" if weights is None else weights.dtype, False)
    args = (target, ignore_index) if weights is None else (target, ignore_index, weight)
    count = Node(name, "autopar.count_valid", args, (), (out,), "", node.origin)
    return summed, count, _divided(node, summed, Ref(name))


def _summed(node: Node, tensors: Tensors, position: int) -> tuple[Node, ...]:
    operands = [tensors[name].shape for name in node.operands]
    shape = operands[0][:-1] if node.op in OF_ROWS_AT else torch.broadcast_shapes(*operands)
    summed = _part(node, node.op, "sum")
    kwargs = {key: value for key, value in node.kwargs if key != "reduction"}
    args = list(node.args[:position])
    if position < len(node.args):
        args += [SUM, *node.args[position + 1 :]]
    else:
        kwargs["reduction"] = SUM
    summed = replace(summed, args=tuple(args), kwargs=tuple(kwargs.items()))
    return summed, _divided(node, summed, math.prod(shape))


def _mean(node: Node, tensors: Tensors) -> tuple[Node, ...] | None:
    source, out = _tensor(node.args[0], tensors), node.outputs[0]
    if node.op == "aten.mean.dim":
        dims = argument(node, 1, "dim") or tuple(range(len(source.shape)))
        assert isinstance(dims, tuple)
        if len(dims) < len(source.shape) or argument(node, 2, "keepdim", False):
            return None
    exact = "float32" if out.dtype in LOW else out.dtype
    kwargs = (("dtype", DType(exact)),) if exact != source.dtype else ()
    summed = _part(node, "aten.sum.default", "sum")
    tensor = replace(summed.outputs[0], dtype=exact)
    summed = replace(summed, args=(node.args[0],), kwargs=kwargs, outputs=(tensor,))
    divided = _divided(node, summed, math.prod(source.shape))
    if exact == out.dtype:
        return summed, divided
    wide = replace(out, name=f"{node.name}.wide", dtype=exact)
    divided = replace(divided, name=wide.name, outputs=(wide,))
    narrow = replace(node, op="aten.to.dtype", args=(Ref(wide.name), DType(out.dtype)), kwargs=())
    return summed, divided, narrow


def _widened(node: Node, tensors: Tensors) -> tuple[Node, ...] | None:
    """Compute the loss in float32 and cast it: a sum in float16 overflows at 65504, a mean would not."""
    casts: dict[str, Node] = {}
    for name in node.operands:
        if tensors[name].dtype == "float16":
            out = replace(tensors[name], name=f"{node.name}.{name}.wide", dtype="float32")
            args: tuple[Arg, ...] = (Ref(name), DType("float32"))
            casts[name] = Node(out.name, "aten.to.dtype", args, (), (out,), "", node.origin)
    seen = {**tensors, **{cast.name: cast.outputs[0] for cast in casts.values()}}
    out = replace(node.outputs[0], name=f"{node.name}.wide", dtype="float32")
    wide = rename(node, {name: cast.name for name, cast in casts.items()})
    parts = _split(replace(wide, name=out.name, outputs=(out,)), seen)
    if parts is None:
        return None
    narrow = replace(node, op="aten.to.dtype", args=(Ref(out.name), DType("float16")), kwargs=())
    return (*casts.values(), *parts, narrow)


def _part(node: Node, op: str, suffix: str) -> Node:
    name = f"{node.name}.{suffix}"
    return Node(name, op, (), (), (replace(node.outputs[0], name=name),), "", node.origin)


def _divided(node: Node, summed: Node, count: Arg) -> Node:
    args = (Ref(summed.outputs[0].name), count)
    return replace(node, op="aten.div.Tensor", args=args, kwargs=())


def _tensor(arg: Arg, tensors: Tensors) -> Tensor:
    found = tensor_of(arg, tensors)
    assert found is not None
    return found
