"""Models that assert: pytest rewrites the assertions of test modules, so they stand here."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.capture.small import Small


def asserted(m: Small, x: torch.Tensor) -> torch.Tensor:
    assert torch.all(x > -100)
    assert (x > -100).all(), f"too small: {x.min()}"
    assert not torch.isnan(x).any(), "not a number"
    assert torch.isfinite(x).all() and x.shape[0] > 1
    assert x.max() < 1000 and x.min() > -1000
    assert torch.equal(x, x)
    assert torch.allclose(x, x), "differ"
    assert torch.isfinite(x).all().item()
    return m.linear(x).sum()


class Checked(nn.Module):
    """Three equal layers, each with an assertion behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x).tanh()
            assert not torch.isnan(x).any()
        return x.sum()
