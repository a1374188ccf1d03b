"""Limits on memory: what is planned fits, what is said to be enough is, and more is never worse."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import autopar
from autopar.errors import InputError, OverLimitError
from autopar.ir.blocks import MODES, no_blocks
from autopar.ir.mesh import Mesh
from autopar.plans.plan import Plan
from autopar.render.text import show_plan
from autopar.sharding.sharding_problem import Settings, pose
from cost_models.hardware import load
from tests import models, parity

WIDTH = 24


class Branches(nn.Module):
    """Blocks with a skip around each, small enough that one operator needs much of the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Tanh(),
                nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), nn.Linear(WIDTH, WIDTH), nn.GELU(),
            )
            for _ in range(2)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


def planned(limit: float | None, **options: str) -> Plan:
    batch = {"x": torch.randn(64, WIDTH)}
    return autopar.plan(Branches(), (2, 2), batch, hardware="cpu", memory_limit=limit, **options)


@pytest.fixture(scope="module")
def free() -> Plan:
    return planned(None)


@pytest.mark.thorough
@pytest.mark.parametrize("share", [pytest.param(0.9, marks=pytest.mark.slow), 0.7])
def test_what_is_planned_fits(free: Plan, share: float) -> None:
    limit = share * free.estimate.memory_nbytes
    found = planned(limit)
    assert found.estimate.memory_nbytes <= limit
    assert free.bound_s <= found.bound_s <= found.objective_s


@pytest.mark.slow
def test_what_is_said_to_be_enough_is(free: Plan) -> None:
    with pytest.raises(OverLimitError) as refused:
        planned(0.01 * free.estimate.memory_nbytes)
    enough = refused.value.least_nbytes
    assert planned(enough).estimate.memory_nbytes <= enough
    for name in ("fsdp", "fsdp_megatron"):
        assert planned(None, preset=name).estimate.memory_nbytes >= enough


@pytest.mark.slow
def test_what_a_preset_needs_is_enough() -> None:
    small = planned(None, preset="fsdp", recompute="full")
    found = planned(small.estimate.memory_nbytes)
    assert found.objective_s <= small.objective_s * 1.05


@pytest.mark.parametrize("pipeline", [1, 2, "auto", autopar.Pipeline(2, "gpipe", 2)])
def test_recomputation_that_would_do_nothing_is_refused(pipeline: Any) -> None:
    model, inputs, loss = models.mlp()
    with pytest.raises(InputError, match="recompute='full' finds nothing to recompute in MLP"):
        autopar.plan(
            model, 2, inputs, loss=loss, hardware="h100", recompute="full", pipeline=pipeline
        )


class Revisited(Branches):
    """Blocks, and numbered modules that are as large and are none: each runs twice, in between."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = Branches().blocks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (*self.twice, *self.blocks, *self.twice):
            x = x + block(x)
        return x.square().mean()


@pytest.mark.thorough
def test_a_forced_recomputation_is_of_blocks_and_says_what_is_none() -> None:
    batch = {"x": torch.randn(64, WIDTH)}
    made = autopar.compile_model(Revisited(), (2, 2), batch, hardware="cpu", recompute="full")
    assert {each.path for each in made.plan.recompute} == {"blocks.0", "blocks.1"}
    left = no_blocks(made.graph)
    assert left == (("twice.0", "runs in 2 pieces"), ("twice.1", "runs in 2 pieces"))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(show_plan(made.plan, made.graph))
    said = "not recomputed, because they are not blocks: twice.0 (runs in 2 pieces), twice.1"
    assert said in console.export_text()


@pytest.mark.thorough
def test_a_repeated_collective_is_priced_whether_chosen_or_forced() -> None:
    """The same decisions cost the same where every mode was open and where one was."""
    case, mesh = parity.reference("gpt2"), Mesh.of(2, 2)
    one = pose(case.graph, mesh, load("cpu"), Settings(recompute="full"), case.saved)
    every = pose(case.graph, mesh, load("cpu"), Settings(), case.saved, MODES)
    decisions = one.priced.decisions(one.ready.solve())
    assert every.answer(decisions).seconds == pytest.approx(one.answer(decisions).seconds, rel=1e-9)
