"""Llama-3-8B on 8x8 GPUs: what people do by hand comes out by itself."""

from __future__ import annotations

import pytest
import torch
import transformers

import autopar
from autopar.ir.placement import P, R, S, Sharding
from autopar.plans.plan import Plan
from cost_models.hardware import parse

PROFILE = """
source = "round figures of an 8-GPU H100 host, written for this test"
date = "2026-11-21"
devices_per_host = 8
[device]
name = "round"
kind = "cuda"
memory_bytes = 80e9
bytes_per_s = 3e12
matmul_efficiency = 0.6
memory_efficiency = 0.8
launch_s = 5e-6
overlap = 0.8
[device.flops_per_s]
float32 = 60e12
bfloat16 = 900e12
[intra_host]
bytes_per_s = 400e9
latency_s = 8e-6
[inter_host]
bytes_per_s = 50e9
latency_s = 10e-6
"""
SLOW, FAST = 0, 1
LAYERS = range(2)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Two of the 32 equal layers: all of them get the same types."""
    config = transformers.LlamaConfig(
        hidden_size=4096, num_hidden_layers=len(LAYERS), num_attention_heads=32,
        num_key_value_heads=8, intermediate_size=14336, vocab_size=128256,
        max_position_embeddings=8192, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    ids = torch.zeros(8, 4096, dtype=torch.int64, device="meta")
    batch = {"input_ids": ids, "labels": ids}
    return autopar.plan(
        model, (8, 8), batch, hardware=parse(PROFILE, "round"), precision="bfloat16",
        memory_limit="80GB",
    )  # fmt: skip


def results(plan: Plan, suffix: str) -> list[Sharding]:
    return [c.sharding.outputs[0] for c in plan.choices if c.node.rstrip("_0123456789") == suffix]


@pytest.mark.slow
def test_tensor_parallel_on_the_fast_axis(plan: Plan) -> None:
    """Column-parallel into attention and MLP, row-parallel out of them (Shoeybi et al. 2019)."""
    for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"):
        for form in results(plan, name):
            assert form[FAST] == S(2), (name, form)
    for name in ("o_proj", "down_proj"):
        for form in results(plan, name):
            assert form[FAST] is P, (name, form)


def test_sequence_parallel_between(plan: Plan) -> None:
    """Norms work on a part of the sequence (Korthikanti et al. 2022)."""
    norms = [c for c in plan.choices if "layernorm" in c.node and c.node.count("weight") == 0]
    assert norms
    for choice in norms:
        assert choice.sharding.outputs[0][FAST] == S(1), choice


def test_data_parallel_on_the_slow_axis(plan: Plan) -> None:
    for name in ("q_proj", "o_proj", "gate_proj", "down_proj"):
        for form in results(plan, name):
            assert form[SLOW] == S(0), (name, form)
    for parameter in plan.parameters:
        if ".layers." in parameter.name and parameter.name.endswith("proj.weight"):
            assert parameter.leaf[SLOW] in (R, S(0), S(1)), parameter
            assert isinstance(parameter.leaf[FAST], S), parameter


def test_the_plan_is_near_optimal_and_fits(plan: Plan) -> None:
    assert 0.995 * plan.objective_s <= plan.bound_s <= plan.objective_s
    assert plan.estimate.memory_nbytes <= 80e9
