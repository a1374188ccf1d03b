"""What emitted code makes lies beside inputs and parameters, whatever torch's default device is."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import autopar
from tests import models
from tests.pool import Pool

MAKERS = re.compile(
    r"torch\.(?:ops\.aten\.)?(arange|full|zeros|ones|eye|linspace|rand|tensor)\b.*(?=  #)"
)
"""Calls that choose a device for themselves, to the end of their line."""


class Made(nn.Module):
    """Numbers that no input decides, made in every way that torch has."""

    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.draws = draws
        self.mix = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(x.shape[0], device=x.device)[:, None] % 3
        ramp = torch.linspace(0.0, 1.0, 8, device=x.device, dtype=x.dtype)
        kept = torch.full((8,), 0.5, device=x.device, dtype=x.dtype) + torch.zeros_like(ramp)
        made = self.mix(x) * kept + x @ torch.eye(8, device=x.device, dtype=x.dtype) + rows
        if self.draws:
            made = made * torch.rand_like(made)
        return (made * ramp + torch.ones_like(made)).square().mean()


def case(draws: bool) -> models.Case:
    """The model and a batch."""
    torch.manual_seed(0)
    return models.double((Made(draws), {"x": torch.randn(8, 8)}, None))


@pytest.mark.parametrize("preset", ["ddp", "megatron"])
def test_every_maker_is_told_the_device(preset: str) -> None:
    model, inputs, _ = case(draws=True)
    source = autopar.compile_model(model, (2,), inputs, preset=preset, hardware="cpu").source
    calls = {match.group(1): match.group() for match in MAKERS.finditer(source)}
    assert {"arange", "linspace", "full", "eye", "rand", "ones"} <= calls.keys()
    for call in calls.values():
        assert "device=self.device" in call


def graph_breaks() -> int:
    """Of a compiled model in which nothing communicates and numbers are made."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    model, inputs, _ = case(False)
    parallel = autopar.parallelize(model, (1,), inputs, hardware="cpu", optimizer="SGD")
    want = parallel(**inputs).detach()
    counters.clear()
    parallel.compile(backend="aot_eager")
    assert torch.allclose(parallel(**inputs).detach(), want)
    assert counters["stats"]["calls_captured"] > 0
    return len(counters["graph_break"])


@pytest.mark.thorough
def test_makers_compile_into_one_graph(pool: Pool) -> None:
    assert pool.run(1, graph_breaks) == [0]


def steps_elsewhere(name: str, preset: str | None) -> None:
    """Steps while the default device has no memory: whatever is made there cannot be used here."""
    model, inputs, loss = models.double(models.CASES[name]()) if name != "made" else case(False)
    parallel = autopar.parallelize(
        model, (2,), inputs, loss=loss, preset=preset, hardware="cpu", optimizer="SGD"
    )
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)

    def step() -> float:
        found = parallel.train_step(**inputs)
        parallel.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(found)

    start = parallel.full_state_dict()
    here = [step() for _ in range(2)]
    parallel.load_state_dict(start)
    with torch.device("meta"):
        there = [step() for _ in range(2)]
    assert here == there


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("made", "fsdp"),
        ("made", "megatron"),
        pytest.param("gpt2", "megatron", marks=pytest.mark.slow),
    ],
)
def test_the_default_device_decides_nothing(pool: Pool, name: str, preset: str) -> None:
    pool.run(2, steps_elsewhere, name, preset)
