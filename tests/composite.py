"""Models of operators and blocks that are not of one piece; most of what they need are activations."""

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
        return torch.cdist(self.mix(x), self.points).neg().exp()


class Apart(nn.Module):
    """A layer's columns in three unequal parts, whose gradients are added up inside of one operator."""

    def __init__(self, width: int = 30) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.up(x).tensor_split(3, -1)
        made: torch.Tensor = self.down(first + second * third)
        return made


class Pooled(nn.Module):
    """A batch norm whose gradient is a mean's."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels // 2, 3, padding=1)
        self.second = nn.Conv2d(channels // 2, channels, 3, padding=1)
        self.norm, self.last = nn.BatchNorm2d(channels), nn.Linear(channels, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.norm(self.second(self.first(x))).mean((2, 3)))
        return made


class Lined(nn.Module):
    """Blocks that are only named: what they hold is called by the model, here a part, there a part."""

    def __init__(self, width: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Module() for _ in range(blocks))
        for layer in self.layers:
            layer.norm, layer.up = nn.RMSNorm(width), nn.Linear(width, 3 * width)
            layer.gate, layer.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            made = layer.norm(x)
            x = x + layer.down(torch.relu(layer.up(made)) * layer.gate(made).sigmoid())
        return x


class Attended(nn.Module):
    """Attention that lays the batch second, and what comes in beside it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attention(x, x, x, need_weights=False)
        made: torch.Tensor = self.norm(x + mixed)
        return made


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


def apart() -> models.Case:
    """`torch.tensor_split`."""
    torch.manual_seed(0)
    return _case(Apart(), 30)


def lined() -> models.Case:
    """Two blocks without a forward of their own."""
    torch.manual_seed(0)
    return _case(Lined(), 32)


def pooled() -> models.Case:
    """Convolutions, a batch norm, a mean over places."""
    torch.manual_seed(0)
    return Pooled(), {"x": torch.randn(8, 3, 16, 16)}, lambda output: output.square().mean()


def attended() -> models.Case:
    """`nn.MultiheadAttention`."""
    torch.manual_seed(0)
    return Attended(), {"x": torch.randn(16, 16, 32)}, lambda output: output.square().mean()


MADE = (normed, cells, distances, apart, lined, pooled, attended)
ALL = {f"composite.{make.__name__}": make for make in MADE}
"""By name."""
