"""Models whose operators are made of several kernels, on many rows: activations are most of them."""

from __future__ import annotations

import torch
from torch import nn

from tests import models

ROWS = 256


class Normed(nn.Module):
    """Two layers, each behind a norm of several kernels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(self.second(self.up(self.first(x))))
        return made


class Cells(nn.Module):
    """A step of two recurrent cells."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.gru, self.lstm = nn.GRUCell(width, width), nn.LSTMCell(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.gru(x, x.flip(0))
        made, _ = self.lstm(hidden, (x, hidden))
        return made


class Distances(nn.Module):
    """How far rows are from learned points."""

    def __init__(self, width: int = 16, points: int = 24) -> None:
        super().__init__()
        self.mix, self.points = nn.Linear(width, width), nn.Parameter(torch.randn(points, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(self.mix(x), self.points).exp()


def _case(model: nn.Module, width: int) -> models.Case:
    return model, {"x": torch.randn(ROWS, width)}, lambda output: output.square().mean()


def normed() -> models.Case:
    """`nn.RMSNorm`."""
    torch.manual_seed(0)
    return _case(Normed(), 32)


def cells() -> models.Case:
    """`nn.GRUCell` and `nn.LSTMCell`."""
    torch.manual_seed(0)
    return _case(Cells(), 16)


def distances() -> models.Case:
    """`torch.cdist`."""
    torch.manual_seed(0)
    return _case(Distances(), 16)


ALL = {f"composite.{make.__name__}": make for make in (normed, cells, distances)}
"""By name."""
