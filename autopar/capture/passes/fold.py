"""Folds what no input, parameter or buffer affects: mask and position arithmetic.

A folded tensor becomes one `full` if all of its entries are equal, or a constant if it is tiny.
Otherwise its operators stay: a range of positions is better generated where it is used than stored
by value. Mask code is also simplified where known values meet unknown ones: selecting by full
ranges only regroups dims, and a mask that is true everywhere masks nothing.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from autopar.capture import _torch
from autopar.capture.constants import nested
from autopar.capture.passes.bags import even_bags
from autopar.capture.passes.known import Known, value_of
from autopar.capture.passes.normal import CREATION
from autopar.capture.passes.rewriting import Tensors, rewrite
from autopar.capture.spread import one_row
from autopar.ir.graph import Arg, DType, Graph, Node, Ref, short

LARGEST_KEPT = 4
"""Maximum number of elements of a constant that replaces operators."""
NEUTRAL = {
    "aten.__and__.Tensor": True, "aten.bitwise_and.Tensor": True, "aten.logical_and.default": True,
    "aten.__or__.Tensor": False, "aten.bitwise_or.Tensor": False, "aten.logical_or.default": False,
}  # fmt: skip
"""The boolean operand that changes nothing in an operator."""


def fold(graph: Graph) -> Graph:
    """Replace nodes of known value by the simplest node of the same value."""
    known: Known = {}

    def folded(node: Node, tensors: Tensors) -> tuple[Node, ...] | None:
        value = value_of(node, known)
        if value is None:
            return (
                _unmasked(node, tensors, known)
                or _regrouped(node, tensors, known)
                or even_bags(node, tensors, known, graph)
            )
        known[node.outputs[0].name] = value
        return None if node.is_leaf or short(node.op) in CREATION else _simplest(node, value)

    with _torch.unfaked():
        return rewrite(graph, folded)


def _simplest(node: Node, value: torch.Tensor) -> tuple[Node, ...] | None:
    out = node.outputs[0]
    dtype = DType(out.dtype)
    row = one_row(value).flatten()
    if value.numel() and bool(row.eq(row[0]).all()):
        args: tuple[Arg, ...] = (out.shape, row[0].item())
        return (replace(node, op="aten.full.default", args=args, kwargs=(("dtype", dtype),)),)
    if value.numel() > LARGEST_KEPT or out.dtype in ("float16", "bfloat16"):
        return None
    args = (nested(value), dtype)
    return (replace(node, op="constant", args=args, kwargs=(), target=node.name),)


def _unmasked(node: Node, tensors: Tensors, known: Known) -> tuple[Node, ...] | None:
    """Replace ``mask & True`` by the mask, expanded to the shape of the result."""
    if node.op not in NEUTRAL or len(node.operands) != 2:
        return None
    out = node.outputs[0]
    for one, other in (node.operands, node.operands[::-1]):
        value = known.get(one)
        neutral = value is not None and bool((one_row(value) == NEUTRAL[node.op]).all())
        if neutral and tensors[other].dtype == out.dtype == "bool":
            args: tuple[Arg, ...] = (Ref(other), out.shape)
            return (replace(node, op="aten.expand.default", args=args, kwargs=()),)
    return None


def _regrouped(node: Node, tensors: Tensors, known: Known) -> tuple[Node, ...] | None:
    """Replace ``mask[arange(b)[:, None, None], arange(s)]`` by ``mask[:, None, :]``."""
    if node.op != "aten.index.Tensor" or not isinstance(node.args[0], Ref):
        return None
    source, indices = tensors[node.args[0].name], node.args[1]
    assert isinstance(indices, tuple)
    places: list[int] = []
    for dim, index in enumerate(indices):
        value = known.get(index.name) if isinstance(index, Ref) else None
        if value is None or value.numel() != source.shape[dim]:
            return None
        if not torch.equal(value.flatten(), torch.arange(source.shape[dim])):
            return None
        long = [d - value.dim() for d, size in enumerate(value.shape) if size > 1]
        if len(long) > 1:
            return None
        places += long
    if places != sorted(set(places)):
        return None
    args: tuple[Arg, ...] = (node.args[0], node.outputs[0].shape)
    return (replace(node, op="aten.reshape.default", args=args, kwargs=()),)
