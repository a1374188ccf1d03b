"""What every rank does to count the memory of steps in lower precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import autopar
from autopar.runtime.parallel import Parallel
from tests import peaks

WIDTH, SAMPLES = 256, 4


class Net(nn.Module):
    """Three layers with norms, and one that is never used."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.idle = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.norm(torch.tanh(layer(x)))
        return (x - y).square().mean()


def batch(samples: int = SAMPLES, width: int = WIDTH) -> dict[str, torch.Tensor]:
    """A batch whose inputs are in the precision of the step: no cast of theirs is counted."""
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(samples, width, generator=draw).bfloat16() for name in ("x", "y")}


def memory(preset: str, shape: tuple[int, ...], **options: Any) -> tuple[int, peaks.Peaks]:
    """Bytes that the plan predicts, and those of a step."""
    torch.manual_seed(0)
    parallel = autopar.parallelize(
        Net(), shape, batch(), preset=preset, precision="bfloat16", hardware="cpu",
        optimizer="SGD(momentum=0.9)", **options,
    )  # fmt: skip
    assert isinstance(parallel, Parallel)
    return int(parallel.plan.estimate.memory_nbytes), peaks.peaks_of(parallel, batch(), 1e-3)
