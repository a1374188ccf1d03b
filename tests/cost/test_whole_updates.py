"""Optimizers that need whole parameters: what is measured of them, and what it costs in a plan."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.cost.prices import Prices
from autopar.cost.whole_updates import gathered_nbytes, optimizer_seconds, replicated_nbytes
from autopar.ir.conversion import Traffic
from autopar.ir.graph import Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, S, Sharding
from autopar.request.optimizers import Update, update_of
from autopar.verify.decisions import _optimizer
from cost_models.hardware import load

WEIGHT = Tensor("weight", (64, 48), "float32", True)
BIAS = Tensor("bias", (64,), "float32", True)
NBYTES = 4 * 64 * 48


class Clipped(torch.optim.SGD):
    """Clips by the norm of all gradients."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.1)
        return super().step(closure)


class Own(torch.optim.SGD):
    """Changes nothing."""


@pytest.mark.parametrize(
    ("optimizer", "update"),
    [
        ("AdamW", Update(2.0, 0.0, "shards")),
        ("SGD(momentum=0.9)", Update(1.0, 0.0, "shards")),
        ("Muon", Update(1.0, 0.0, "parameter")),
        ("Adafactor", Update(0.0, (256 + 192) / (256 * 192), "parameter")),
        (partial(Clipped, momentum=0.9), Update(1.0, 0.0, "model")),
        (Own, Update(0.0, 0.0, "shards")),
    ],
)
def test_a_trial_step_tells_what_is_kept_and_read(optimizer: Any, update: Update) -> None:
    assert update_of(optimizer) == update


def test_a_whole_update_gathers_value_gradient_and_states() -> None:
    mesh, hardware = Mesh.of(2, 4), load("h100")
    shards = Prices(mesh, hardware, states=1.0)
    whole = Prices(mesh, hardware, states=1.0, reads="parameter")
    split, inner = Sharding((S(0), S(1))), Sharding((I, S(1)))
    gathers = [
        Traffic(1, "all_gather", "forward", NBYTES // 2),
        Traffic(0, "all_gather", "forward", NBYTES),
    ]
    for form, used in ((split, gathers), (inner, [Traffic(1, "all_gather", "forward", NBYTES)])):
        seconds = whole.update(NBYTES) + 3 * sum(map(whole.collective, used))
        assert optimizer_seconds(WEIGHT, form, whole) == pytest.approx(seconds)
        assert optimizer_seconds(WEIGHT, form, shards) < seconds
    replicated = Sharding((I, I))
    assert optimizer_seconds(WEIGHT, replicated, whole) == whole.update(NBYTES)


def test_whole_tensors_of_one_parameter_or_of_all() -> None:
    mesh, hardware = Mesh.of(2), load("h100")
    both = [(WEIGHT, Sharding((S(0),))), (BIAS, Sharding((S(0),)))]
    for reads, count in (("shards", 0), ("parameter", NBYTES), ("model", NBYTES + 4 * 64)):
        prices = Prices(mesh, hardware, states=1.0, reads=reads, whole_states=0.5)
        assert gathered_nbytes(both, prices) == 3 * count
        assert replicated_nbytes(WEIGHT, prices) == NBYTES // 2
    prices = Prices(mesh, hardware, states=1.0, reads="parameter", master_itemsize=8)
    assert gathered_nbytes(both, prices) == 6 * NBYTES
    assert gathered_nbytes([(WEIGHT, Sharding((I,)))], prices) == 0


class Wide(nn.Module):
    """One large weight among small ones, and small activations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 4096), nn.Linear(4096, 8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.square().mean()


def planned(optimizer: str, preset: str) -> autopar.Plan:
    batch = {"x": torch.ones(4, 8)}
    return autopar.plan(Wide(), 4, batch, optimizer=optimizer, preset=preset, hardware="h100")


def test_a_plan_counts_whole_tensors_and_knows_them_again() -> None:
    shards, whole = (planned(name, "fsdp") for name in ("SGD(momentum=0.9)", "Muon"))
    assert whole.asked.reads == "parameter"
    assert whole.estimate.optimizer_nbytes == shards.estimate.optimizer_nbytes
    rest = whole.estimate.memory_nbytes - whole.estimate.activation_nbytes
    rest -= whole.estimate.working_nbytes
    assert whole.estimate.memory_nbytes == rest + 3 * 4 * 4096 * 8
    assert whole.estimate.memory_nbytes > shards.estimate.memory_nbytes
    assert whole.estimate.parts.update_s > shards.estimate.parts.update_s
    assert autopar.Plan.from_json(whole.to_json()).asked == whole.asked
    assert _optimizer(whole).ok
    by_rank = planned("Muon", "ddp").estimate, planned("SGD(momentum=0.9)", "ddp").estimate
    assert by_rank[0] == by_rank[1]
