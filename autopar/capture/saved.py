"""What autograd keeps of every operator for the backward, measured by running it on fake tensors.

The run shows the CPU's kernels.  Where a GPU's keeps something else, `ELSEWHERE` has an operator that
keeps the same: its fused dropout keeps a mask of one byte per element, the CPU's the factors themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from autopar.capture import _torch
from autopar.capture.within import within
from autopar.graph import Graph, Node, Saved, Tensor, short
from autopar.operators import bind, callable_of

ELSEWHERE = {("cuda", "aten.dropout.default"): "aten.native_dropout.default"}
"""By kind of device and operator."""
Layout = Callable[[torch.Tensor], torch.Tensor]
"""Gives a tensor the strides under which an operator is looked at."""


def saved(
    graph: Graph, kind: str = "cpu", known: dict[object, Saved] | None = None
) -> dict[str, Saved]:
    """By node name, on a kind of device; each kind of operator, arguments and shapes is run once.

    `known` remembers that from graph to graph."""
    known = {} if known is None else known
    found: dict[str, Saved] = {}
    for node in graph.nodes:
        if node.is_leaf or not any(tensor.differentiable for tensor in node.outputs):
            continue
        node = replace(node, op=ELSEWHERE.get((kind, node.op), node.op))
        operands = {name: graph.tensors[name] for name in node.operands}
        order = {name: place for place, name in enumerate(operands)}
        shapes = tuple((t.shape, t.dtype, t.differentiable) for t in operands.values())
        renamed = _numbered(node, order)
        key = (node.op, renamed, shapes)
        if key not in known:
            known[key] = _measure(node, operands)
        found[node.name] = known[key]
    return found


def _numbered(node: Node, order: dict[str, int]) -> str:
    """The arguments with operand numbers for names: equal for equal calls."""
    numbered = {name: f"<{place}>" for name, place in order.items()}
    return repr(
        (
            bind(node.args, numbered.__getitem__),
            [(k, bind(v, numbered.__getitem__)) for k, v in node.kwargs],
        )
    )


def _measure(node: Node, operands: dict[str, Tensor]) -> Saved:
    swapped = short(node.op) == "scaled_dot_product_attention"
    found = _kept(node, operands, _heads_behind if swapped else _as_made)
    forward, backward = _within(node, operands)
    found = replace(found, forward_nbytes=forward, backward_nbytes=backward)
    if all(len(tensor.shape) < 2 for tensor in operands.values()):
        return found
    try:
        still = _kept(node, operands, _turned).operands
    except RuntimeError:  # a view that such strides do not have
        still = ()
    return replace(found, copied=tuple(place for place in found.operands if place not in still))


def _kept(node: Node, operands: dict[str, Tensor], lay: Layout) -> Saved:
    kept: dict[int, int] = {}
    alive: list[torch.Tensor] = []  # a freed storage's id would be the next one's, too

    def pack(tensor: torch.Tensor) -> None:
        alive.append(tensor)
        kept[_torch.storage_id(tensor)] = tensor.untyped_storage().nbytes()

    with _torch.fake_mode():
        tensors = {name: _fake(tensor, lay) for name, tensor in operands.items()}
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed)
        with torch.enable_grad(), hooks:
            result = _call(node, tensors)
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        outputs = outputs[
            : len(node.outputs)
        ]  # what an operator of `ELSEWHERE` makes besides is kept
        names = list(node.operands)
        by_operand = _holding(kept, ((i, tensors[name]) for i, name in enumerate(names)))
        by_output = _holding(kept, enumerate(outputs))
    return Saved(by_operand, by_output, sum(kept.values()))


def _within(node: Node, operands: dict[str, Tensor]) -> tuple[int, int]:
    with _torch.fake_mode():
        tensors = {name: _fake(tensor, _as_made) for name, tensor in operands.items()}
        leaves = [tensor for tensor in tensors.values() if tensor.requires_grad]
        return within(lambda: _call(node, tensors), leaves, len(node.outputs))


def _as_made(x: torch.Tensor) -> torch.Tensor:
    return x


def _heads_behind(x: torch.Tensor) -> torch.Tensor:
    """Heads lie behind positions, as attention mostly gets them.

    Without a fused kernel, as under a mask with a gradient, it saves copies of such operands: gathers
    of them must not be promised to be forgotten.
    """
    return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() == 4 else x


def _turned(x: torch.Tensor) -> torch.Tensor:
    """The first dim lies innermost."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0) if x.dim() > 1 else x


def _holding(kept: dict[int, int], tensors: Iterable[tuple[int, Any]]) -> tuple[int, ...]:
    """Places of the tensors whose storage is kept; each storage is taken out when it is found."""
    found = []
    for place, tensor in tensors:
        if isinstance(tensor, torch.Tensor) and _torch.storage_id(tensor) in kept:
            del kept[_torch.storage_id(tensor)]
            found.append(place)
    return tuple(found)


def _fake(tensor: Tensor, lay: Layout) -> torch.Tensor:
    dtype = getattr(torch, tensor.dtype)
    differentiable = tensor.differentiable and (dtype.is_floating_point or dtype.is_complex)
    leaf = lay(torch.empty(tensor.shape, dtype=dtype)).requires_grad_(differentiable)
    # A view of a leaf may be changed in place; a leaf that needs a gradient may not.
    return leaf.view_as(leaf) if differentiable else leaf


def _call(node: Node, tensors: dict[str, torch.Tensor]) -> Any:
    args = bind(node.args, tensors.__getitem__)
    kwargs = {key: bind(value, tensors.__getitem__) for key, value in node.kwargs}
    return callable_of(node.op)(*args, **kwargs)
