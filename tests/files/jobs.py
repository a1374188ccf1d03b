"""What ranks do in tests of checkpoints."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import autopar
from autopar.errors import AutoparError
from autopar.runtime.checkpoints import manifest


class Layers(nn.Module):
    """Three equal layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.square().mean()


def built(mesh: Any, preset: str | None, stages: int = 1) -> tuple[Any, Any, Any]:
    """A parallel module, its optimizer and scheduler."""
    torch.manual_seed(0)
    model = Layers().double()
    batch = {"x": torch.randn(8, 8, dtype=torch.float64)}
    options: dict[str, Any] = {"pipeline": stages} if stages > 1 else {"preset": preset}
    parallel = autopar.parallelize(model, mesh, batch, hardware="cpu", **options)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-2)
    return parallel, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def step(parallel: Any, optimizer: Any, scheduler: Any, number: int) -> float:
    batch = {"x": torch.full((8, 8), 0.1 * (number + 1), dtype=torch.float64)}
    loss = parallel.train_step(**batch)
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    return float(loss)


def begin(folder: str, mesh: Any, preset: str | None, stages: int = 1) -> list[float]:
    """Two steps, a save, two more."""
    parallel, optimizer, scheduler = built(mesh, preset, stages)
    losses = [step(parallel, optimizer, scheduler, i) for i in range(2)]
    parallel.save(
        f"{folder}/c",
        optimizer,
        2,
        scheduler=scheduler,
        extra={"epoch": 4, "rank": dist.get_rank()},
    )
    drawn = random.random()
    return [*losses, *(step(parallel, optimizer, scheduler, i) for i in range(2, 4)), drawn]


def resume(folder: str, mesh: Any, preset: str | None, stages: int = 1) -> list[float]:
    """Two steps behind the load."""
    parallel, optimizer, scheduler = built(mesh, preset, stages)
    extra: dict[str, Any] = {"epoch": 0}
    assert parallel.load(f"{folder}/c", optimizer, scheduler=scheduler, extra=extra) == 2
    assert extra == {"epoch": 4}
    drawn = random.random()
    return [*(step(parallel, optimizer, scheduler, i) for i in range(2, 4)), drawn]


def position_of_others(folder: str, mesh: Any, preset: str | None) -> str:
    """What every rank had of its own is nobody's on another number of ranks."""
    parallel, optimizer, _ = built(mesh, preset)
    before = {name: value.clone() for name, value in parallel.full_state_dict().items()}
    try:
        parallel.load(f"{folder}/c", optimizer, extra={"rank": None})
    except AutoparError as error:
        after = parallel.full_state_dict()
        assert all(torch.equal(value, after[name]) for name, value in before.items())
        assert not optimizer.state
        return str(error)
    return ""


def one_rank_fails(folder: str, mesh: Any, preset: str | None) -> list[str]:
    """In a save, and in a load: all ranks raise, and what was there stays."""
    parallel, optimizer, scheduler = built(mesh, preset)
    step(parallel, optimizer, scheduler, 0)
    parallel.save(f"{folder}/c", optimizer, 1)
    before = {name: value.clone() for name, value in parallel.full_state_dict().items()}
    said = []
    digest = manifest.digest

    def broken(path: Path) -> Any:
        if dist.get_rank() == dist.get_world_size() - 1:
            raise OSError(28, os.strerror(28), str(path))
        return digest(path)

    manifest.digest = broken
    try:
        for attempt in (
            lambda: parallel.save(f"{folder}/c", optimizer, 2),
            lambda: parallel.load(f"{folder}/c"),
        ):
            try:
                attempt()
            except AutoparError as error:
                said.append(str(error))
    finally:
        manifest.digest = digest
    step(parallel, optimizer, scheduler, 1)
    assert parallel.load(f"{folder}/c", optimizer) == 1
    after = parallel.full_state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    return said
