"""Methods of tensors that DTensor refuses or gets wrong: formatting, lists and arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.distributed.tensor import DTensor, Replicate

from autopar.errors import InputError
from autopar.runtime import _torch, agreement
from autopar.runtime.operators import _torch as dispatch

Standing = Callable[..., Any]
"""Torch's own method."""


def replace_methods(is_ours: Callable[[DTensor], bool]) -> None:
    """Replace the methods, for tensors that `is_ours` holds for."""
    methods: dict[str, Callable[..., Any]] = {
        "__format__": _format, "numpy": _numpy, "tolist": _tolist, "share_memory_": _share_memory,
    }  # fmt: skip

    def chosen(ours: Callable[..., Any]) -> Callable[..., Any]:
        def method(tensor: DTensor, *args: Any, standing: Standing, **kwargs: Any) -> Any:
            return (ours if is_ours(tensor) else standing)(tensor, *args, **kwargs)

        return method

    dispatch.replace_methods({name: chosen(ours) for name, ours in methods.items()})


def _format(tensor: DTensor, spec: str) -> str:
    if tensor.dim() == 0:
        return format(tensor.item(), spec)
    return object.__format__(tensor, spec)


def _tolist(tensor: DTensor) -> Any:
    if tensor.dim() == 0:
        return tensor.item()
    return _whole(tensor, "tolist").tolist()


def _numpy(tensor: DTensor, *args: Any, **kwargs: Any) -> Any:
    """Return an array; it is read-only if it was gathered: writing would not reach the tensor."""
    array = _whole(tensor, "numpy").numpy(*args, **kwargs)
    if not all(isinstance(kind, Replicate) for kind in tensor.placements):
        array.flags.writeable = False
    return array


def _share_memory(tensor: DTensor) -> NoReturn:
    raise InputError(
        f"A tensor of shape {tuple(tensor.shape)} of a parallel model cannot move to shared memory: "
        "ranks hold parts of it. Share a copy of the whole values: "
        "tensor.full_tensor().clone().share_memory_()."
    )


def _whole(tensor: DTensor, name: str) -> torch.Tensor:
    """Return the whole tensor, which requires a gradient if this one does."""
    if all(isinstance(kind, Replicate) for kind in tensor.placements):
        whole = _torch.local_of(tensor).detach()
    else:
        agreement.begin_together(f"{name}() of a sharded tensor", tensor.device_mesh)
        whole = DTensor.full_tensor(_torch.dtensor(_torch.local_of(tensor).detach(), tensor._spec))
    return whole.requires_grad_() if tensor.requires_grad else whole
