"""Constants without entries keep all of their sizes in the emitted text."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autopar


class Empty(nn.Module):
    """Has a constant without entries."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.behind = [torch.zeros(shape, dtype=dtype)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.layer(x).sum()
        return loss + (loss * self.behind[0]).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (3, 0)], ids=str)
def test_sizes_are_kept(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    model = Empty(shape, dtype)
    made = autopar.compile_model(
        model, 2, torch.randn(4, 4), hardware="h100", preset="ddp", optimizer="SGD"
    )
    assert f"torch.zeros([{', '.join(map(str, shape))}], dtype={dtype}" in made.source
