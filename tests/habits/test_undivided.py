"""What was asked to be divided is divided, or an error says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.errors import ConstraintError
from autopar.request.batches import Batches

LOCAL = Batches(local=True)
PRESETS = ("ddp", "zero2", "fsdp", "hsdp")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def planned(samples: int, mesh: Any, **asked: Any) -> Any:
    batch = {"input": torch.ones(samples, 8)}
    return autopar.plan(net(), mesh, batch, loss=lambda o: o.square().mean(), **asked)


@pytest.mark.thorough
@pytest.mark.parametrize("given", ["global", "local"])
@pytest.mark.parametrize("preset", PRESETS)
def test_six_samples_on_four_ranks(preset: str, given: str) -> None:
    with pytest.raises(ConstraintError, match=r"'x' \(4 devices\).*6 samples.*allow_undivided"):
        planned(6, (4,), preset=preset, batches=Batches(local=given == "local"))


@pytest.mark.parametrize("preset", PRESETS)
def test_an_axis_that_divides_nothing_beside_one_that_does(preset: str) -> None:
    with pytest.raises(ConstraintError, match=r"mesh axis '[xy]'"):
        planned(6, (2, 4), preset=preset)


@pytest.mark.parametrize("preset", [*PRESETS, "megatron", "fsdp_megatron"])
def test_what_divides_is_planned_and_one_device_needs_nothing(preset: str) -> None:
    assert not planned(8, (4,), preset=preset).idle
    assert not planned(6, (1,), preset=preset).idle


def test_permitted_plans_say_it_in_their_first_line() -> None:
    plan = planned(6, (4,), preset="ddp", planning=autopar.Planning(allow_undivided=True))
    assert "axis x (4 devices) splits no work" in str(plan).splitlines()[0]


@pytest.mark.thorough
def test_local_parts_are_always_divided() -> None:
    assert planned(8, (2,), batches=LOCAL).asked.batch.is_split
    with pytest.raises(
        ConstraintError,
        match=r"Batches\(local=True\).*5 samples \(example inputs are the batch of all ranks",
    ):
        planned(5, (2,), batches=LOCAL)
    with pytest.raises(ConstraintError, match=r"Batches\(local=True\)"):
        planned(8, (2,), batches=LOCAL, preset="megatron")


def test_constraints_that_split_nothing() -> None:
    with pytest.raises(ConstraintError, match="splits nothing"):
        planned(8, (4,), constraints={"stored:4.bias": {"x": "S, else I"}})


@pytest.mark.thorough
def test_presets_are_read_on_the_meshes_of_stages() -> None:
    pipeline = autopar.Pipeline([(2, 2), (2, 2)], microbatches=2)
    plan = planned(8, (8,), preset="megatron", pipeline=pipeline)
    for stage in plan.stages:
        assert all(share.flops for share in stage.plan.shares)
