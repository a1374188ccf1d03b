"""Converts DTensors between strided layouts and plain ones, which checkpoints can hold."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor import empty as empty_dtensor
from torch.distributed.tensor.placement_types import Placement, Shard

from autopar.runtime import _torch


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in a layout that checkpoints can hold; itself if it is in one already."""
    if not isinstance(tensor, DTensor) or not any(map(_torch.is_strided, tensor.placements)):
        return tensor
    whole = DTensor.full_tensor(tensor).detach()
    return distribute_tensor(whole, tensor.device_mesh, plain_layout(tensor))


def plain_layout(tensor: DTensor) -> tuple[Placement, ...]:
    """Return a tensor's placements with strided shards replaced by plain ones."""
    kinds = tensor.placements
    return tuple(Shard(k.dim) if _torch.is_strided(k) else k for k in kinds)  # type: ignore[attr-defined]


def empty_plain(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an empty tensor of the same shape in the plain layout, to read a checkpoint into."""
    if not isinstance(tensor, DTensor):
        return torch.empty(tensor.shape, dtype=dtype, device=tensor.device)
    return empty_dtensor(
        tuple(tensor.shape),
        dtype=dtype,
        device_mesh=tensor.device_mesh,
        placements=plain_layout(tensor),
    )


def as_laid_out(value: Any, tensor: torch.Tensor) -> Any:
    """Return a value that was read, in the layout of `tensor` if both are DTensors of equal shape."""
    if not isinstance(value, DTensor) or not isinstance(tensor, DTensor):
        return value
    if value.shape != tensor.shape or value.placements == tensor.placements:
        return value
    return distribute_tensor(value.full_tensor(), tensor.device_mesh, tensor.placements)
