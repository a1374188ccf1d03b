"""Blocks that keep state in buffers, under recomputation."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.habits.batch_jobs import against_one


class Stateful(nn.Module):
    """A block that counts, averages its weight, or normalises by spectral norm; or a batch norm."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.norm = nn.BatchNorm1d(8) if kind == "batch norm" else nn.Identity()
        self.register_buffer("state", torch.zeros(()))
        if kind == "spectral norm":
            nn.utils.parametrizations.spectral_norm(self.up)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "counter":
            self.state += 1
        if self.kind == "average":
            self.state.lerp_(x.detach().square().mean(), 0.1)
        x = x * (1 + self.state)
        if self.kind == "read before":
            self.state.add_(1)
        return x + torch.tanh(self.down(torch.tanh(self.norm(torch.relu(self.up(x))))))


class Stack(nn.Module):
    """Three equal blocks with state, three without."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.stateful = nn.ModuleList(Stateful(kind) for _ in range(3))
        self.plain = nn.ModuleList(Stateful("") for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (*self.stateful, *self.plain):
            x = layer(x)
        return x.square().mean()


KINDS = ("counter", "average", "read before", "spectral norm", "batch norm")


def trained(kind: str, preset: str, recompute: Any) -> float:
    """The largest difference to one process."""
    torch.manual_seed(0)
    batches = [{"x": torch.randn(4, 4, dtype=torch.float64)} for _ in range(3)]
    return against_one(Stack(kind), batches, preset=preset, recompute=recompute)
