"""What does not train costs nothing: no gradient, no optimizer state, no communication."""

from __future__ import annotations

import pytest
import torch

from autopar.plan import Plan
from tests import parity
from tests.pool import Pool

FROZEN = ["lora", "llama_lora", "one_bias", "half_frozen"]


@pytest.mark.parametrize(
    "name",
    [
        "lora", "odd_buffers",
        *(pytest.param(n, marks=pytest.mark.slow) for n in FROZEN if n != "lora"),
    ],
)  # fmt: skip
def test_equals_one_process(pool: Pool, name: str) -> None:
    """Presets, the solver's plan, random plans: values, gradients and traffic to the byte."""
    presets = [None, "ddp", "zero2", "fsdp", "megatron", "fsdp_megatron"]
    if name == "odd_buffers":
        presets = [None, "ddp", "fsdp"]
    works = [parity.preset_work(name, (2, 2), preset) for preset in presets]
    works += [parity.random_work(name, (2, 2), seed) for seed in range(8)]
    pool.run(4, parity.check_all, works)


@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.parametrize("preset", ["ddp", "zero2", "fsdp"])
def test_the_plan_says_what_frozen_weights_cost(name: str, preset: str) -> None:
    """Gradients, and their traffic, are those of the parameters that train."""
    case = parity.reference(name)
    plan = Plan.from_json(parity.preset_work(name, (2,), preset).plan)
    trained = [n for n, p in case.model.named_parameters() if p.requires_grad]
    nbytes = sum(
        8
        * torch.Size(plan.parameter[n].leaf.local_shape(plan.parameter[n].shape, plan.mesh)).numel()
        for n in trained
    )
    assert plan.estimate.gradient_nbytes == nbytes
    for entry in plan.parameters:
        if entry.name not in trained:
            assert not any(str(step.target[step.axis]) == "R" for step in entry.steps), entry


def optimizer_state(name: str, preset: str) -> tuple[set[str], set[str]]:
    """Which parameters get gradients, and which get a state in AdamW over all parameters."""
    work = parity.preset_work(name, (2,), preset)
    parallel = parity.parallel_of(work)
    parallel(**parity.reference(name).inputs).backward()
    optimizer = torch.optim.AdamW(parallel.parameters())
    optimizer.step()
    graded = {n for n, p in parallel.named_parameters() if p.grad is not None}
    held = {n for n, p in parallel.named_parameters() if optimizer.state.get(p)}
    return graded, held


@pytest.mark.parametrize("preset", ["zero2", "fsdp"])
def test_no_gradient_and_no_state(pool: Pool, preset: str) -> None:
    for graded, held in pool.run(2, optimizer_state, "one_bias", preset):
        assert graded == held == {"transformer.h.1.mlp.c_fc.bias"}
    for graded, held in pool.run(2, optimizer_state, "lora", preset):
        assert graded == held and all(n.endswith((".up", ".down")) for n in held)
