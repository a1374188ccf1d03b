"""Layouts that checkpoints can write: parameters whose blocks are strided are laid out plainly."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor import empty as empty_dtensor
from torch.distributed.tensor.placement_types import Placement, Shard

from autopar.runtime import _torch


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in a layout that checkpoints can write; the tensor itself where it is one."""
    if not isinstance(tensor, DTensor) or not any(map(_torch.is_strided, tensor.placements)):
        return tensor
    whole = DTensor.full_tensor(tensor).detach()
    return distribute_tensor(whole, tensor.device_mesh, plain_layout(tensor))


def plain_layout(tensor: DTensor) -> tuple[Placement, ...]:
    """The nearest layout that checkpoints can write: no blocks are strided."""
    kinds = tensor.placements
    return tuple(Shard(k.dim) if _torch.is_strided(k) else k for k in kinds)  # type: ignore[attr-defined]


def empty_plain(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of its shape and layout, as near as a checkpoint can be read into."""
    if not isinstance(tensor, DTensor):
        return torch.empty(tensor.shape, dtype=dtype, device=tensor.device)
    return empty_dtensor(
        tuple(tensor.shape),
        dtype=dtype,
        device_mesh=tensor.device_mesh,
        placements=plain_layout(tensor),
    )


def as_laid_out(value: Any, tensor: torch.Tensor) -> Any:
    """What was read, in the layout of the tensor that it stands for or stands beside."""
    if not isinstance(value, DTensor) or not isinstance(tensor, DTensor):
        return value
    if value.shape != tensor.shape or value.placements == tensor.placements:
        return value
    return distribute_tensor(value.full_tensor(), tensor.device_mesh, tensor.placements)
