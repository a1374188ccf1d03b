"""By the prediction no preset is faster than the plan, though the solver minimises another sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import autopar
from autopar.ir.mesh import Mesh
from autopar.ir.placement import R
from autopar.sharding import uniform
from autopar.sharding.sharding_problem import Settings, pose
from cost_models.hardware import load
from tests import parity

NEARLY = 1.005
PRESETS = ("ddp", "zero2", "fsdp")


def gpt() -> tuple[Any, dict[str, torch.Tensor]]:
    config = GPT2Config(
        n_layer=2, n_head=4, n_embd=64, vocab_size=256, bos_token_id=0, eos_token_id=0
    )
    ids = torch.zeros(8, 32, dtype=torch.long)
    return GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def llama() -> tuple[Any, dict[str, torch.Tensor]]:
    config = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        vocab_size=2000,
    )  # fmt: skip
    ids = torch.zeros(32, 64, dtype=torch.long)
    return LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}


def wide_gpt() -> tuple[Any, dict[str, torch.Tensor]]:
    """The README's: small weights beside large ones, on devices that are fast."""
    config = GPT2Config(
        n_layer=2, n_head=8, n_embd=512, vocab_size=256, bos_token_id=0, eos_token_id=0
    )
    ids = torch.zeros(16, 512, dtype=torch.long)
    return GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "mesh", "hardware"),
    [
        (gpt, (4,), "cpu"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (gpt, (2,), "cpu"), (llama, (4,), "cpu"), (llama, (2, 4), "h100"),
                (wide_gpt, (2, 2), "h100"),
            )
        ),
    ],
)  # fmt: skip
def test_no_preset_is_faster(make: Any, mesh: tuple[int, ...], hardware: str) -> None:
    model, batch = make()
    plan = autopar.plan(model, mesh, batch, hardware=hardware)
    for preset in PRESETS:
        other = autopar.plan(model, mesh, batch, hardware=hardware, preset=preset)
        assert plan.estimate.step_s <= NEARLY * other.estimate.step_s, preset


def test_weights_that_go_different_ways_are_set_against_weights_that_go_one() -> None:
    """A best plan whose prediction is far above its sum loses against whole weights; bounds stay."""
    case = parity.reference("mlp")
    posed = pose(case.graph, Mesh.of(2), load("cpu"), Settings(), case.saved)
    best = posed.plan(posed.solve())
    assert uniform.shortest(posed, best) is best, "nothing to mend"
    worse = best.with_estimate(replace(best.estimate, exposed_s=best.estimate.exposed_s + 1.0))
    found = uniform.shortest(posed, worse)
    assert found.estimate.step_s < worse.estimate.step_s
    assert found.bound_s == worse.bound_s <= found.objective_s and found.proof == worse.proof
    assert all(letter == R for each in found.parameters for letter in each.leaf)
