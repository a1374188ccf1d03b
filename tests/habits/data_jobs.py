"""Weights that are written between forwards in ways that torch does not count, on ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import autopar
from tests.habits.outside_jobs import batches, entropy


class Net(nn.Sequential):
    """Two layers; megatron keeps parts of them otherwise at rest than in the step."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = super().forward(x)
        return made


def _by_data(parameter: nn.Parameter, factor: float) -> None:
    parameter.data.mul_(factor)


def _by_view(parameter: nn.Parameter, factor: float) -> None:
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    local.data.view(-1).mul_(factor)


def _by_foreach(parameter: nn.Parameter, factor: float) -> None:
    torch._foreach_mul_([parameter.data], factor)


WAYS: dict[str, Callable[[nn.Parameter, float], None]] = {
    "data": _by_data,
    "view": _by_view,
    "foreach": _by_foreach,
}


def _scale(model: nn.Module, way: str, factor: float) -> None:
    for parameter in model.parameters():
        WAYS[way](parameter, factor)


def written(way: str, ranks: int, options: dict[str, Any]) -> None:
    """Losses and weights equal one process's: around an evaluation, forwards and sums of gradients."""
    torch.manual_seed(7)
    single, given = Net().double(), batches(4)
    mesh = options.pop("mesh", ranks)
    parallel = autopar.parallelize(copy.deepcopy(single), mesh, given[0], loss=entropy, **options)
    runs = [
        (single, lambda batch: entropy(single(batch["x"]), batch["y"]), nullcontext),
        (parallel, lambda batch: parallel(**batch), parallel.no_sync),
    ]
    one, other = (_losses(model, way, step, hold, given) for model, step, hold in runs)
    assert max(abs(a - b) for a, b in zip(one, other, strict=True)) <= 1e-9, (one, other)
    weights = parallel.full_state_dict()
    for name, value in single.state_dict().items():
        assert (weights[name] - value).abs().max() <= 1e-9, name


def _losses(
    model: nn.Module, way: str, step: Any, hold: Any, given: list[dict[str, torch.Tensor]]
) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for first, second in zip(given[:2], given[2:], strict=True):
        optimizer.zero_grad()
        found.append(step(first).item())  # a forward without a backward
        _scale(model, way, 1.5)
        with torch.no_grad():
            found.append(step(first).item())
        _scale(model, way, 0.5)
        with hold():
            loss = step(first)
            loss.backward()
        _scale(model, way, 1.25)
        last = step(second)
        last.backward()
        found += [loss.item(), last.item()]
        optimizer.step()
    return found


def evaluated_between_stages() -> None:
    """Behind an evaluation of a pipeline with other weights, a step computes with those put back."""
    torch.manual_seed(7)
    single, (batch, _) = Net().double(), batches(2)
    parallel = autopar.parallelize(copy.deepcopy(single), 2, batch, loss=entropy, pipeline=2)
    for value in (2.0, 0.5):
        _scale(parallel, "data", value)
        with torch.no_grad():
            parallel(**batch)
    loss = parallel.train_step(**batch)
    assert abs(loss - entropy(single(batch["x"]), batch["y"])) <= 1e-9
