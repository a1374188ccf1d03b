"""Constants of a graph: tensors whose values are known without running the model, as nested tuples."""

from __future__ import annotations

from typing import Any, cast

import torch

from autopar.capture import _torch
from autopar.capture.where import location
from autopar.errors import CaptureError
from autopar.ir.graph import Arg, Origin

LARGEST = 1024
"""Maximum number of elements of a constant in a graph. Larger ones should be buffers."""


def lifted(tensor: torch.Tensor, origin: Origin, home: str | None = None) -> Arg:
    """Return the values of a tensor that is neither parameter, buffer nor input.

    Raise `CaptureError` if it is large, requires a gradient, or has no known values.
    """
    if _torch.is_wrapped(tensor):
        raise CaptureError(
            f"torch.vmap or another torch.func transform is used at {location(origin)}\nwhich "
            "cannot be captured. Write the batched computation with plain tensor operations, and "
            "derivatives with torch.autograd.grad(y.sum(), x, create_graph=True) of "
            "x = x.detach().requires_grad_()."
        )
    shape = tuple(tensor.shape)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    if tensor.requires_grad and _torch.is_fake(tensor):
        raise CaptureError(
            f"A tensor of shape {shape} is used at {location(origin)}\n"
            "that was created outside of the captured graph, as forward-mode differentiation "
            "(torch.func.jvp) does. Take derivatives with torch.autograd.grad(y.sum(), x, "
            "create_graph=True) of x = x.detach().requires_grad_()."
        )
    if is_parameter or tensor.requires_grad:
        kind = "Parameter" if is_parameter else "tensor that requires grad"
        raise CaptureError(
            f"The {kind} of shape {shape}{f', {home!r},' if home else ''} that is used at "
            f"{location(origin)}\n"
            "is not among the model's named_parameters(), so it would be a constant and never "
            "be trained. Register it: as an attribute of a module, in nn.ParameterList or "
            "nn.ParameterDict; put a loss that has parameters into the module that returns it. "
            "If it should not be trained, register_buffer(name, its .detach())."
        )
    if tensor.numel() > LARGEST:
        raise CaptureError(
            f"The model uses a tensor of shape {shape} at {location(origin)}\nthat is neither a "
            "parameter, "
            "a buffer nor an input. Register it in the module that owns it: "
            "self.register_buffer('name', tensor, persistent=False)."
        )
    value = _torch.known_value(tensor)
    if value is None:
        raise CaptureError(
            f"The values of a tensor of shape {shape} at {location(origin)}\nare not known (it "
            "lives on the "
            "meta device). Register it as a buffer, or build it with torch operations in forward."
        )
    return nested(value)


def nested(tensor: torch.Tensor) -> Arg:
    """Return the values of a real tensor as nested tuples."""
    with _torch.unfaked():
        return _tuples(tensor.detach().tolist())


def _tuples(value: Any) -> Arg:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else cast(Arg, value)
