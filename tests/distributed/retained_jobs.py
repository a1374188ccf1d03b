"""Runs in pool workers: backwards in parts, and several of one graph, through recomputed blocks."""

from __future__ import annotations

import copy

import torch
from torch import nn

import autopar
from autopar.ir.blocks import Recompute
from tests.distributed.jobs import same_weights

STEPS = 2


class Block(nn.Module):
    """Enough operators to be recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(self.norm(x))
        hidden = self.down(nn.functional.gelu(hidden) * hidden.sigmoid() + hidden.tanh())
        return x + hidden.sin().exp() * 0.1


class Blocks(nn.Module):
    """Three of them, so that two stages differ."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


def model_and_input() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Blocks().double(), torch.randn(8, 8, dtype=torch.float64)


def retained(preset: str, mode: Recompute) -> None:
    """Three backwards of one graph add up as in one process."""
    single, x = model_and_input()
    parallel = autopar.parallelize(
        copy.deepcopy(single), 2, {"x": x}, preset=preset, recompute=mode, hardware="cpu"
    )
    assert parallel.plan.recompute
    for model in (single, parallel):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(x=x)
            for _ in range(3):
                loss.backward(retain_graph=True)
            optimizer.step()
    same_weights(parallel, single, 1e-9)


def split(schedule: str, mode: Recompute) -> None:
    """Gradients of weights come after those of inputs, and are those of one process."""
    single, x = model_and_input()
    pipeline = autopar.Pipeline(2, schedule, microbatches=4)
    parallel = autopar.parallelize(
        copy.deepcopy(single), 2, {"x": x}, pipeline=pipeline, recompute=mode, hardware="cpu"
    )
    assert parallel.plan.schedule.splits_backward
    for model in (single, parallel):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            if model is parallel:
                parallel.train_step(x=x)
            else:
                single(x).backward()
            optimizer.step()
    same_weights(parallel, single, 1e-9)
