"""Operators that change a tensor's shape in place, such as ``squeeze_``: DTensor keeps its old shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from autopar.errors import InputError
from autopar.runtime.operators import _torch as dispatch

aten = torch.ops.aten
PAIRS = {
    aten.squeeze_.default: aten.squeeze.default, aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims, aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.t_.default: aten.t.default, aten.transpose_.default: aten.transpose.int,
}  # fmt: skip
"""By operator in place: the operator that returns a view."""


def reshaped(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give a tensor the shape of the view; refuse it for parameters."""
    tensor = args[0]
    assert isinstance(tensor, DTensor)
    if isinstance(tensor, nn.Parameter):
        refuse_shape(operator, tensor)
    dispatch.take_view(tensor, PAIRS[operator](*args, **kwargs))
    return tensor


def refuse_shape(operator: Any, tensor: torch.Tensor) -> None:
    """Raise `InputError` for a change of the shape of a sharded tensor."""
    raise InputError(
        f"{operator} changes the shape of a tensor of shape {tuple(tensor.shape)} in place, but shapes "
        "of a parallel model's tensors are fixed after autopar.parallelize. Use the operator that "
        "returns a new tensor."
    )
