"""Blocks whose results nothing saves for the backward: a caller's variables alone hold them."""

from __future__ import annotations

import torch
from torch import nn

from tests import models


class Block(nn.Module):
    """Adds, and sums along the rows: neither keeps a tensor for its backward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        shifted = x + self.bias
        summed = shifted.cumsum(-1)
        mixed = summed - shifted
        return mixed + self.scale * count


class Between(nn.Module):
    """Something is said between its blocks, so that they are no turns of a loop."""

    def __init__(self, blocks: int = 4, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = x
        for number, layer in enumerate(self.layers):
            x = layer(x, given.mean() + number)
        made: torch.Tensor = self.head(x.mean(1))
        return made


def between() -> models.Case:
    """Its mean square."""
    torch.manual_seed(0)
    return Between(), {"x": torch.randn(8, 64, 64)}, lambda output: output.square().mean()
