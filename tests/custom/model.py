"""A model whose every heavy operator is a user's own."""

from __future__ import annotations

import torch
from torch import nn

from tests.custom import operators as operators
from tests.models import Case

ops = torch.ops.autopar_tests


class Gated(nn.Module):
    """A gated feed-forward layer: product, bias, gate, product."""

    def __init__(self, hidden: int = 16, inner: int = 32) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(hidden, 2 * inner) * 0.1)
        self.bias = nn.Parameter(torch.randn(2 * inner) * 0.1)
        self.down = nn.Linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = ops.project(x, self.up)
        h = ops.add(h, self.bias)
        h = ops.swiglu(h)
        return x + self.down(h)


def gated() -> Case:
    """Two layers on a batch of eight."""
    torch.manual_seed(0)
    model = nn.Sequential(Gated(), Gated())
    inputs = {"input": torch.randn(8, 6, 16)}
    return model, inputs, lambda out: out.square().mean()
