"""Targets for the tensors of all stages: filled on the ranks that hold them, gathered on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from autopar.runtime.weights.target import Box, Target
from autopar.runtime.world import device_type


@dataclass(frozen=True, eq=False)
class Spread(Target):
    """A tensor that some workers' ranks hold; on all others `tensor` is a meta tensor.

    `source` is a rank that holds it or a part of it.
    """

    source: int = 0

    @property
    def is_here(self) -> bool:
        """Whether this rank holds a part."""
        return not self.tensor.is_meta

    def fill(self, read: Callable[[Box], torch.Tensor]) -> None:
        """Set this rank's part, if it has one."""
        if self.is_here:
            super().fill(read)

    @torch.no_grad()
    def whole(self) -> torch.Tensor:
        """Return the full tensor on the CPU of every rank.  Collective over all ranks."""
        tensor = self.tensor.detach()
        if isinstance(tensor, DTensor):
            tensor = tensor.full_tensor()
        elif tensor.is_meta:
            tensor = torch.empty_like(tensor, device=device_type())
        tensor = tensor.contiguous().clone()
        dist.broadcast(tensor, src=self.source)
        return tensor.to("cpu", copy=True)
