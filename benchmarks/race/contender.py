"""What takes part in the race: a training step as somebody would set it up, and how it was set up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from models import Batch, Model
from torch import nn
from torch.distributed.tensor import DTensor

Weights = Mapping[str, torch.Tensor]


class NotPossible(Exception):
    """A contender cannot train this model here; it says why."""


@dataclass(frozen=True)
class Contender:
    """On this rank: `step` runs forward and backward of a global batch and leaves the gradients.

    It gives the mean loss of this rank's share, or None where the loss is on other ranks: the mean of
    those that have one is the batch's.  `weights` are whole tensors under the model's own names, complete
    on rank 0; every rank calls it.
    """

    step: Callable[[Batch], torch.Tensor | None]
    parameters: list[nn.Parameter]
    weights: Callable[[], Weights]
    says: str = ""
    predicted_s: float | None = None


@dataclass(frozen=True)
class Place:
    """Where it runs: `sizes` are the hosts of each rack, or the ranks of one host."""

    sizes: tuple[int, ...]
    hardware: str

    @property
    def ranks(self) -> int:
        """In all."""
        return sum(self.sizes)

    @property
    def mesh(self) -> tuple[int, ...]:
        """Racks by ranks in a rack."""
        return self.sizes if len(self.sizes) == 1 else (len(self.sizes), self.sizes[0])


@dataclass(frozen=True)
class Setting:
    """One way to set up a family of parallelism."""

    family: str
    name: str
    build: Callable[[Model, Place], Contender]


def groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """For an optimizer: tensors on the same device mesh together, as its fused kernels want them."""
    by_mesh: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        by_mesh.setdefault(mesh, []).append(parameter)
    return [{"params": each} for each in by_mesh.values()]


def share_of(batch: Batch, part: int, parts: int) -> Batch:
    """An equal part of a global batch."""
    return {key: value.chunk(parts)[part] for key, value in batch.items()}


def whole(named: Iterable[tuple[str, torch.Tensor]]) -> Weights:
    """Full tensors."""
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in named
    }


def mean_loss(loss: torch.Tensor | None) -> float:
    """Over the ranks that have one."""
    mine = torch.zeros(2, dtype=torch.float64)
    if loss is not None:
        mine[0], mine[1] = loss.detach().double(), 1.0
    dist.all_reduce(mine)
    return float(mine[0] / mine[1])
