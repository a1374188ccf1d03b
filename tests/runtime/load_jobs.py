"""Jobs that load values that differ between ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import autopar
from autopar.errors import RankMismatchError


class Three(nn.Module):
    """Three layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def values(number: float) -> dict[str, torch.Tensor]:
    """A state dict with all entries equal to `number`."""
    return {name: torch.full_like(x, number) for name, x in Three().state_dict().items()}


def loaded(layout: dict[str, Any]) -> tuple[list[str], list[float]]:
    """What loads say whose values are other ones on rank 1, and the values after an equal load."""
    batch = {"x": torch.randn(4, 8)}
    differ = values(float(dist.get_rank()))
    said = []

    def refused(how: Any, *args: Any, **kwargs: Any) -> None:
        try:
            how(*args, **kwargs)
        except RankMismatchError as error:
            said.append(str(error))

    parallel = autopar.parallelize(Three(), 2, batch, hardware="cpu", **layout)
    refused(parallel.load_state_dict, differ)
    refused(parallel.load_state_dict, {"layers.0.weight": differ["layers.0.weight"]}, strict=False)
    refused(parallel.load_weights, differ)
    refused(autopar.parallelize, Three(), 2, batch, hardware="cpu", weights=differ, **layout)
    parallel.load_state_dict(values(2.0))
    parallel.load_state_dict(parallel.state_dict())
    found = parallel.full_state_dict()
    return said, sorted({float(x) for each in found.values() for x in each.unique()})
