"""Inverts view operators: a write into a view becomes a new value of the tensor that it is a view of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from autopar.ir.graph import Arg

REGROUPING = {
    "aten.view.default", "aten.reshape.default", "aten.unsqueeze.default", "aten.squeeze.default",
    "aten.squeeze.dim", "aten.flatten.using_ints", "aten.unflatten.int", "aten.view_as.default",
    "aten.alias.default", "aten._unsafe_view.default", "aten.contiguous.default",
}  # fmt: skip
SCATTERED = {
    "aten.slice.Tensor": "aten.slice_scatter.default",
    "aten.select.int": "aten.select_scatter.default",
}


@dataclass(frozen=True)
class PutBack:
    """``op(parent, part, *rest)``, or ``op(part, *rest)`` where the part is all of the parent."""

    op: str
    rest: tuple[Arg, ...]
    whole: bool


def parent_of(view: fx.Node) -> fx.Node | None:
    """Return what a node is a view of, if a write to the node can be put back."""
    if view.op != "call_function" or put_back(view) is None:
        return None
    parent = view.args[0]
    return parent if isinstance(parent, fx.Node) else None


def put_back(view: fx.Node) -> PutBack | None:
    """Return how a new value of the view becomes a new value of its parent."""
    op = str(view.target)
    if not view.args or not isinstance(view.args[0], fx.Node):
        return None
    parent = view.args[0].meta.get("val")
    if not isinstance(parent, torch.Tensor):
        # One of several outputs, for example of `topk`, is a tensor of its own.
        return None
    shape = tuple(parent.shape)
    rest: tuple[Any, ...] = tuple(view.args[1:])
    if op in SCATTERED:
        return PutBack(SCATTERED[op], rest, False)
    if op == "aten.narrow.default":
        dim, start, length = rest
        return PutBack("aten.slice_scatter.default", (dim, start, start + length), False)
    if op in REGROUPING:
        return PutBack("aten.reshape.default", (shape,), True)
    if op == "aten.transpose.int":
        return PutBack(op, rest, True)
    if op == "aten.t.default":
        return PutBack("aten.transpose.int", (0, 1), True) if len(shape) == 2 else None
    if op == "aten.permute.default":
        order = [dim % len(shape) for dim in rest[0]]
        return PutBack(op, (tuple(order.index(dim) for dim in range(len(shape))),), True)
    return None
