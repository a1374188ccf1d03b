"""Presets that split the batch follow it: what moves is gradients and the loss, and steps stay right."""

from __future__ import annotations

import pytest

from autopar.plans.plan import Plan
from tests import parity
from tests.moved import MOVED
from tests.pool import Pool

PRESETS = ("ddp", "zero2", "fsdp")


@pytest.mark.thorough
@pytest.mark.parametrize("name", MOVED)
def test_step(pool: Pool, name: str) -> None:
    works = [parity.preset_work(name, (2,), preset) for preset in PRESETS]
    for work in works:
        assert gathered(Plan.from_json(work.plan), name) == ["loss"]
    pool.run(2, parity.check_all, works)


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("preset", ["hsdp", "megatron"])
def test_on_two_axes(name: str, preset: str) -> None:
    """The data axis alone splits the batch under tensor parallelism, both do under hybrid sharding."""
    plan = Plan.from_json(parity.preset_work(name, (2, 2), preset).plan)
    axes = (0, 1) if preset == "hsdp" else (0,)
    assert [gathered(plan, name, axis) for axis in axes] == [["loss"]] * len(axes)


def gathered(plan: Plan, name: str, axis: int = 0) -> list[str]:
    """What is no parameter and is communicated on an axis, forward or backward."""
    graph = parity.reference(name).graph
    tensors = graph.tensors
    moved = {
        "loss" if c.tensor == graph.loss else c.tensor
        for c in plan.conversions
        if c.axis == axis and graph.producer[c.tensor].op != "parameter"
        for tensor in [tensors[c.tensor]]
        if c.step.traffic(tensor.shape, tensor.itemsize, plan.mesh, tensor.differentiable)
    }
    return sorted(moved)
