"""What pipelines keep is bounded; weights that took no part have no gradient; dropped models go."""

from __future__ import annotations

import copy
import gc
import time
import warnings
import weakref
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import autopar
from autopar.runtime import surroundings
from tests.parity import close
from tests.pool import Pool
from tests.wide import Wide

WAIT_S = 5.0
"""Gloo's threads drop what they sent once they get the GIL."""


class Tied(nn.Module):
    """Three equal layers; `idle` is read before and behind them, and trained nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(*(make() for make in (partial(nn.Linear, 8, 8), nn.Tanh) * 4))
            for _ in range(3)
        )
        self.idle = nn.Parameter(torch.eye(8) / 2)
        self.partly = nn.Parameter(torch.eye(8))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        hidden = x @ self.idle.detach() @ self.partly
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return scale * (hidden @ self.idle.detach() @ self.partly.detach()).square().mean()


def pipelined(model: nn.Module, batch: dict[str, Any], stages: tuple[int, ...], **more: Any) -> Any:
    pipeline = autopar.Pipeline(stages, microbatches=2)
    with Wide():
        return autopar.parallelize(
            model, sum(stages), batch, hardware="cpu", pipeline=pipeline, **more
        )


def idle(stages: tuple[int, ...]) -> None:
    """Weights after decaying steps are those of one process; two steps' gradients add up."""
    torch.manual_seed(0)
    model = Tied().double()
    single = copy.deepcopy(model)
    batch = {"x": torch.randn(4, 8, dtype=torch.float64)}
    parallel = pipelined(model, batch, stages)
    read = [{n.target for n in g.leaves("parameter")} for g in parallel._first.stages.graphs]
    assert {"idle", "partly"} <= read[0] & read[-1], read
    optimizers = [
        torch.optim.AdamW(m.parameters(), lr=0.1, weight_decay=0.5) for m in (parallel, single)
    ]
    for _ in range(2):
        for _ in range(2):
            close(parallel.train_step(**batch), loss := single(**batch), "loss")
            loss.backward()
        assert single.idle.grad is None
        assert parallel.idle.grad is None
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    whole = parallel.full_state_dict()
    for name, want in single.state_dict().items():
        close(whole[name], want, name)


def numbers() -> tuple[int, int, int]:
    """Pipelines and links kept behind many values of a number, and how often that was warned of."""
    torch.manual_seed(0)
    model = Tied().double()
    single = copy.deepcopy(model)
    batch = {"x": torch.randn(4, 8, dtype=torch.float64)}
    parallel = pipelined(model, {**batch, "scale": 1.0}, (1, 1))
    fewer = mock.patch.object(surroundings, "MOST", 4)  # the worker serves other tests, too
    with fewer, warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for step in [*range(7), 0, 0]:
            found = parallel.train_step(**batch, scale=1.0 + step)
            close(found, single(**batch, scale=1.0 + step), f"loss {step}")
    gc.collect()
    said = [w for w in heard if "'scale'" in str(w.message)]
    return len(parallel._of_batch), len(parallel._links._known), len(said)


def dropped(recompute: str | None, stages: tuple[int, ...], evaluates: bool) -> list[str]:
    """What is still alive of a model that was trained, or only run forward, and dropped."""
    model = Tied().double()
    batch = {"x": torch.randn(4, 8, dtype=torch.float64)}
    more = {"recompute": recompute} if recompute else {}
    if len(stages) == 1:
        parallel = autopar.parallelize(model, 2, batch, hardware="cpu", preset="fsdp", **more)
    else:
        parallel = pipelined(model, batch, stages, **more)
    for _ in range(3):
        if evaluates:
            parallel.eval()
            parallel(**batch)  # with gradients on, and no backward
        else:
            parallel.train_step(**batch)
    held = {name: weakref.ref(p) for name, p in parallel.named_parameters()}
    held["the module"] = weakref.ref(parallel)
    del parallel
    end = time.monotonic() + WAIT_S
    while stays := [name for name, found in held.items() if found() is not None]:
        gc.collect()
        if time.monotonic() > end:
            break
        time.sleep(0.01)
    return stays


def growth(recompute: str | None, stages: tuple[int, ...]) -> int:
    """Tensors more after forwards without a backward."""
    model = Tied().double()
    batch = {"x": torch.randn(4, 8, dtype=torch.float64)}
    more = {"recompute": recompute} if recompute else {}
    if len(stages) == 1:
        parallel = autopar.parallelize(model, 2, batch, hardware="cpu", preset="fsdp", **more)
    else:
        parallel = pipelined(model, batch, stages, **more)
        parallel.eval()

    def tensors() -> int:
        gc.collect()
        return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())

    for _ in range(3):
        parallel(**batch)
    before = tensors()
    for _ in range(8):
        parallel(**batch)
    end = time.monotonic() + WAIT_S
    while (grown := tensors() - before) > 0 and time.monotonic() < end:
        time.sleep(0.01)
    return grown


@pytest.mark.parametrize("stages", [(1, 1), pytest.param((2, 2), marks=pytest.mark.slow)])
def test_what_took_no_part_has_no_gradient(pool: Pool, stages: tuple[int, ...]) -> None:
    pool.run(sum(stages), idle, stages)


@pytest.mark.slow
def test_pipelines_of_numbers_are_bounded_and_warned_of(pool: Pool) -> None:
    assert pool.run(2, numbers) == [(4, 4, 1)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("stages", [(2,), (1, 1)])
@pytest.mark.parametrize("recompute", [None, "selective", "full"])
def test_nothing_stays(pool: Pool, recompute: str | None, stages: tuple[int, ...]) -> None:
    for evaluates in (False, True):
        assert pool.run(2, dropped, recompute, stages, evaluates) == [[], []]
    assert max(pool.run(2, growth, recompute, stages)) <= 0
