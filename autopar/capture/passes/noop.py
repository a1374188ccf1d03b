"""Drops operators that change neither value nor gradient."""

from __future__ import annotations

from collections.abc import Callable

from autopar.capture.passes.normal import LAID_OUT
from autopar.capture.passes.rewriting import Tensors, argument, rewrite, tensor_of
from autopar.ir.graph import Graph, Node, Ref, Tensor

ALWAYS = {
    "aten.alias.default", "aten.contiguous.default", "aten.clone.default",
    "aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.lift.default",
    "aten.positive.default", "aten.resolve_conj.default", "aten.resolve_neg.default",
}  # fmt: skip
"""Operators that copy or return their operand; the graph writes nothing in place."""
IF_UNCHANGED = {
    "aten.to.dtype", "aten.reshape.default", "aten.expand.default", "aten.slice.Tensor",
    "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.broadcast_to.default",
    "aten.narrow.default", "aten.repeat.default",
}  # fmt: skip
"""No-ops if shape and dtype stay the same: a slice of the full size is the whole tensor."""
DROPOUTS = {"aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default"}


def drop_noops(graph: Graph) -> Graph:
    """Drop no-ops; their readers read the operand instead."""
    laid_out = _must_be_laid_out(graph)
    return rewrite(
        graph,
        lambda node, tensors: None if node.name in laid_out else _without(node, tensors),
    )


def drop_copies(graph: Graph) -> Graph:
    """Drop no-ops, except arithmetic with a number that may follow from the batch size."""
    kept = {node.name for node in graph.nodes if node.op in NEUTRAL} | _must_be_laid_out(graph)
    return rewrite(
        graph, lambda node, tensors: None if node.name in kept else _without(node, tensors)
    )


def _must_be_laid_out(graph: Graph) -> set[str]:
    """Return the copies that `normalise` puts in front of group norms of data."""
    read = {node.operands[0] for node in graph.nodes if node.op == "aten.group_norm.default"}
    return {
        node.name
        for node in graph.nodes
        if node.op == LAID_OUT and node.name in read and not node.outputs[0].differentiable
    }


def _without(node: Node, tensors: Tensors) -> str | None:
    if node.op == "aten.cat.default":
        return _cat_of_one(node, tensors)
    if not node.args or not isinstance(node.args[0], Ref) or len(node.outputs) != 1:
        return None
    source, out = tensors[node.args[0].name], node.outputs[0]
    if (source.shape, source.dtype) != (out.shape, out.dtype):
        return None
    if source.differentiable != out.differentiable:
        return None
    noop = (
        node.op in ALWAYS
        or node.op in IF_UNCHANGED
        or (node.op == "aten.detach.default" and not source.differentiable)
        or (node.op in DROPOUTS and (node.args[1] == 0 or node.args[2] is False))
        or (node.op in NEUTRAL and NEUTRAL[node.op](node, source))
    )
    return source.name if noop else None


def _scalar(value: float) -> Callable[[Node, Tensor], bool]:
    def neutral(node: Node, source: Tensor) -> bool:
        other, alpha = argument(node, 1, "other"), argument(node, 2, "alpha", 1)
        return not isinstance(other, Ref) and other == value and alpha == 1

    return neutral


def _zero_of_integers(node: Node, source: Tensor) -> bool:
    """Return whether 0 is added to an integer tensor; in a float tensor it turns -0.0 into 0.0."""
    return "int" in source.dtype and _scalar(0)(node, source)


NEUTRAL: dict[str, Callable[[Node, Tensor], bool]] = {
    "aten.mul.Tensor": _scalar(1),
    "aten.mul.Scalar": _scalar(1),
    "aten.div.Tensor": _scalar(1),
    "aten.add.Tensor": _zero_of_integers,
    "aten.add.Scalar": _zero_of_integers,
    "aten.sub.Tensor": _zero_of_integers,
}


def _cat_of_one(node: Node, tensors: Tensors) -> str | None:
    """Return x for ``cat([empty, x])``, which a new key-value cache computes.

    An empty tensor that has a gradient stays: an empty gradient is not None.
    """
    parts, made = node.args[0], node.outputs[0]
    assert isinstance(parts, tuple)
    found = [t for t in (tensor_of(part, tensors) for part in parts) if t]
    full = [t for t in found if 0 not in t.shape]
    if len(full) != 1 or (full[0].shape, full[0].dtype) != (made.shape, made.dtype):
        return None
    return None if any(t.differentiable and t is not full[0] for t in found) else full[0].name
