"""States and gradients of one process's whole tensors, given to an optimizer of a parallel model."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import distribute_tensor

import autopar
from autopar.runtime.checkpoint import save
from tests.distributed.jobs import same_weights
from tests.habits.whole_jobs import said


class Net(nn.Module):
    """Three equal layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x.square().mean()


def written(path: str) -> None:
    """The checkpoint of one process."""
    model, optimizer, _ = _trained()
    save(path, model, optimizer, step=2)


def _trained() -> tuple[nn.Module, torch.optim.Optimizer, dict[str, torch.Tensor]]:
    """Two steps of one process."""
    torch.manual_seed(0)
    model, batch = Net().double(), {"x": torch.rand(4, 8, dtype=torch.float64)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        _step(model, optimizer, batch)
    return model, optimizer, batch


def _step(model: Any, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> None:
    model(**batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def states(ranks: int, preset: str, path: str) -> None:
    """A state dict is refused when it would be used; the checkpoint goes on as in one process."""
    plain, old, batch = _trained()
    parallel = autopar.parallelize(Net().double(), ranks, batch, preset=preset, hardware="cpu")
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-2)
    parallel.load_state_dict(plain.state_dict())
    optimizer.load_state_dict(copy.deepcopy(old.state_dict()))
    said(
        lambda: _step(parallel, optimizer, batch),
        "autopar.runtime.checkpoint.save(path, model, optimizer)",
    )
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-2)
    parallel.zero_grad()
    assert parallel.load(path, optimizer) == 2
    for model, each in ((plain, old), (parallel, optimizer)):
        _step(model, each, batch)
    same_weights(parallel, plain, 1e-9)


def gradients(ranks: int, preset: str) -> None:
    """A plain gradient is refused; one that is distributed is stepped with."""
    plain, _, batch = _trained()
    parallel = autopar.parallelize(
        copy.deepcopy(plain), ranks, batch, preset=preset, hardware="cpu", optimizer="SGD"
    )
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, parallel)]
    plain.zero_grad()
    for model in (plain, parallel):
        model(**batch).backward()
    ours, theirs = parallel.layers[0].weight, plain.layers[0].weight
    kept, ours.grad = ours.grad, torch.ones(8, 8, dtype=torch.float64)
    said(optimizers[1].step, "distribute_tensor")
    ours.grad = kept
    whole = torch.ones(8, 8, dtype=torch.float64)
    ours.grad.copy_(distribute_tensor(whole, ours.device_mesh, ours.placements))
    theirs.grad.copy_(whole)
    for optimizer in optimizers:
        optimizer.step()
    same_weights(parallel, plain, 1e-9)
