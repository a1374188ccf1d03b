"""A model with parameters that have no elements, as of bottlenecks of width zero."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.models import BATCH, HIDDEN, Case


class Bottleneck(nn.Module):
    """Adds what passes through no features at all, and rows of an empty table."""

    def __init__(self) -> None:
        super().__init__()
        self.straight = nn.Linear(HIDDEN, HIDDEN)
        self.down = nn.Parameter(torch.empty(0, HIDDEN))
        self.up = nn.Parameter(torch.empty(HIDDEN, 0))
        self.further = nn.Parameter(torch.empty(0, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.cat([self.straight.weight, self.further])
        made = torch.tanh(F.linear(x, weight, self.straight.bias))
        return made + F.linear(F.linear(x, self.down), self.up)


class Empties(nn.Module):
    """Three of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Bottleneck() for _ in range(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(x, y)


def empties() -> Case:
    """Returns its own loss."""
    torch.manual_seed(0)
    with torch.random.fork_rng():
        x, y = torch.randn(2, BATCH, HIDDEN)
    return Empties(), {"x": x, "y": y}, None
