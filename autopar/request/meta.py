"""Copies the user's model to the meta device, to capture it for batches of any shape."""

from __future__ import annotations

import copy

import torch
from torch import nn

from autopar.errors import CaptureError, InputError
from autopar.request import _torch
from autopar.request.arrivals import arrived
from autopar.request.derived import derived
from autopar.request.storages import refuse_shared_memory

VALUES = "autopar_values"
"""Attribute of a meta buffer that holds its current values, which determine sizes that a step checks."""
LARGEST = 1 << 16
"""Most elements of such a buffer."""


def without_weights(model: nn.Module, compute: torch.dtype | None = None) -> nn.Module:
    """Return a copy of the model on the meta device; tied parameters stay tied, weights are not copied.

    With `compute`, floating-point parameters have that dtype; buffers keep theirs.  Raise `InputError`
    for models that cannot be planned, `CaptureError` for gradient hooks on parameters.
    """
    if not isinstance(model, nn.Module):
        what = (
            f"the class {model.__name__}"
            if isinstance(model, type)
            else f"a {type(model).__name__}"
        )
        raise InputError(
            f"autopar takes the model as an nn.Module, not {what}. Put the computation into the "
            "forward of a module that holds the parameters, and pass an instance."
        )
    model = arrived(model)
    refuse_shared_memory(model)
    refuse_parameter_hooks(model)
    memo: dict[int, object] = {id(group): group for group in _groups(model)}
    memo |= {id(derived): derived.detach().to("meta") for derived in _derived_tensors(model)}
    for parameter in model.parameters():
        dtype = (
            compute if compute is not None and parameter.is_floating_point() else parameter.dtype
        )
        empty = torch.empty_like(parameter, device="meta", dtype=dtype)
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = bare = torch.empty_like(buffer, device="meta")
        if not buffer.is_meta and tells_sizes(buffer):
            setattr(bare, VALUES, buffer.detach().to("cpu", copy=True))
    return copy.deepcopy(model, memo)


def refuse_parameter_hooks(model: nn.Module) -> None:
    """Raise `CaptureError` for gradient hooks: the parallel module replaces the user's parameters."""
    for name, parameter in model.named_parameters():
        if _torch.has_gradient_hooks(parameter):
            raise CaptureError(
                f"Parameter {name!r} has gradient hooks, which the parallel module would lose. "
                "Remove them first, and change parameter.grad of the parallel module between "
                "backward and optimizer.step() instead."
            )


def tells_sizes(tensor: torch.Tensor) -> bool:
    """Whether it is a small integer or boolean tensor, such as a mask, by which a model may select."""
    discrete = not tensor.is_floating_point() and not tensor.is_complex()
    return discrete and tensor.dim() > 0 and tensor.numel() <= LARGEST


def _groups(model: nn.Module) -> list[object]:
    """Return the process groups that modules hold, which must not be deep-copied."""
    groups = [vars(module).get("process_group") for module in model.modules()]
    return [group for group in groups if group is not None]


def _derived_tensors(model: nn.Module) -> list[torch.Tensor]:
    return [vars(module)[name] for module in model.modules() for name in derived(module)]
