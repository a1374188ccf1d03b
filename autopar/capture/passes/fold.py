"""Compute once what no input, parameter or buffer reaches: mask and position arithmetic.

A folded tensor becomes one `full` where all its entries are equal, a constant where it is small;
otherwise the operators stay (a position range is better made in place than carried by value).
"""

from __future__ import annotations

import math

import torch

from autopar.capture import _torch
from autopar.capture.constants import nested
from autopar.capture.passes.normal import CREATION
from autopar.capture.passes.rewriting import Tensors, rewrite
from autopar.graph import Arg, DType, Graph, Node, Ref, short

LARGEST_COMPUTED = 1 << 22
LARGEST_KEPT = 4
RANDOM_WORDS = ("rand", "dropout", "bernoulli", "multinomial", "normal", "uniform", "empty", "exponential")


def fold(graph: Graph) -> Graph:
    """Replace nodes of known value by the simplest node of the same value."""
    known: dict[str, torch.Tensor] = {}

    def folded(node: Node, tensors: Tensors) -> tuple[Node, ...] | None:
        if not _foldable(node) or any(name not in known for name in node.operands):
            return None
        value = _computed(node, known)
        if value is None:
            return None
        known[node.outputs[0].name] = value
        return None if node.is_leaf or short(node.op) in CREATION else _simplest(node, value)

    with _torch.unfaked():
        return rewrite(graph, folded)


def _foldable(node: Node) -> bool:
    if node.op == "constant":
        return True
    if not node.op.startswith("aten.") or len(node.outputs) != 1 or node.outputs[0].differentiable:
        return False
    small = math.prod(node.outputs[0].shape) <= LARGEST_COMPUTED
    return small and not any(word in short(node.op) for word in RANDOM_WORDS)


def _computed(node: Node, known: dict[str, torch.Tensor]) -> torch.Tensor | None:
    if node.op == "constant":
        return torch.tensor(node.args[0], dtype=_dtype(node)).reshape(node.outputs[0].shape)
    _, name, overload = node.op.split(".")
    operator = getattr(getattr(torch.ops.aten, name), overload)
    args = [_real(arg, known) for arg in node.args]
    kwargs = {key: _real(value, known) for key, value in node.kwargs}
    value = operator(*args, **kwargs)
    return value if isinstance(value, torch.Tensor) else None


def _real(arg: Arg, known: dict[str, torch.Tensor]) -> object:
    if isinstance(arg, Ref):
        return known[arg.name]
    if isinstance(arg, DType):
        return getattr(torch, arg.name)
    return [_real(item, known) for item in arg] if isinstance(arg, tuple) else arg


def _dtype(node: Node) -> torch.dtype:
    found = getattr(torch, node.outputs[0].dtype)
    assert isinstance(found, torch.dtype)
    return found


def _simplest(node: Node, value: torch.Tensor) -> tuple[Node, ...] | None:
    out = node.outputs[0]
    dtype = DType(out.dtype)
    first: Arg = value.flatten()[0].item() if value.numel() else None
    if value.numel() and bool((value == first).all()):
        kwargs = (("dtype", dtype),)
        return (Node(node.name, "aten.full.default", (out.shape, first), kwargs, (out,), "", node.origin),)
    if value.numel() > LARGEST_KEPT or out.dtype in ("float16", "bfloat16"):
        return None
    args: tuple[Arg, ...] = (nested(value), dtype)
    return (Node(node.name, "constant", args, (), (out,), node.name, node.origin),)
