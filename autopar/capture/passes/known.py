"""Computes the values that no input, parameter or buffer affects."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from autopar.capture.spread import computed
from autopar.ir.graph import Arg, DType, Node, Ref, short

LARGEST = 1 << 22
"""Maximum number of elements in memory of a tensor that is computed."""
RANDOM_WORDS = ("rand", "dropout", "bernoulli", "multinomial", "normal", "uniform", "empty")

Known = dict[str, torch.Tensor]


def value_of(node: Node, known: Known) -> torch.Tensor | None:
    """Return the node's value if it follows from known values."""
    if node.op == "constant":
        dtype = getattr(torch, node.outputs[0].dtype)
        return torch.tensor(node.args[0], dtype=dtype).reshape(node.outputs[0].shape)
    if not _computable(node) or any(name not in known for name in node.operands):
        return None
    _, name, overload = node.op.split(".")
    operator = getattr(getattr(torch.ops.aten, name), overload)
    kwargs = {key: _real(value, known) for key, value in node.kwargs}
    args = [_real(arg, known) for arg in node.args]
    value = computed(operator, args, kwargs, [node.outputs[0].shape], LARGEST)
    return value if isinstance(value, torch.Tensor) else None


def _computable(node: Node) -> bool:
    if not node.op.startswith("aten.") or len(node.outputs) != 1 or node.outputs[0].differentiable:
        return False
    return not any(word in short(node.op) for word in RANDOM_WORDS)


def _real(arg: Arg, known: Mapping[str, torch.Tensor]) -> object:
    if isinstance(arg, Ref):
        return known[arg.name]
    if isinstance(arg, DType):
        return getattr(torch, arg.name)
    return [_real(item, known) for item in arg] if isinstance(arg, tuple) else arg
