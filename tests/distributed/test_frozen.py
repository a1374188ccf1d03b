"""What does not train costs nothing: no gradient, no optimizer state, no communication."""

from __future__ import annotations

import itertools

import pytest
import torch

from autopar.capture import capture
from autopar.capture.saved import saved
from autopar.compile.outputs import with_outputs
from autopar.ir.blocks import blocks
from autopar.ir.graph import short
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S
from autopar.plans.plan import Plan
from autopar.sharding.compile import compile_graph
from autopar.sharding.sharding_problem import Settings
from cost_models.hardware import load
from tests import parity
from tests.daily import daily
from tests.frozen import FROZEN as TRUNKS
from tests.frozen import Probe
from tests.pool import Pool

FROZEN = ["lora", "llama_lora", "one_bias", "half_frozen"]
TABLES = {"used:*.wte.weight": "[S(0), *]"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FROZEN, "odd_buffers"])
def test_equals_one_process(pool: Pool, name: str) -> None:
    """Presets, the solver's plan, random plans: values, gradients and traffic to the byte."""
    presets = [None, "ddp", "zero2", "fsdp", "megatron", "fsdp_megatron"]
    if name == "odd_buffers":
        presets = [None, "ddp", "fsdp"]
    works = [parity.preset_work(name, (2, 2), preset) for preset in presets]
    works += [parity.random_work(name, (2, 2), seed) for seed in range(4)]
    pool.run(4, parity.check_all, works)


@pytest.mark.thorough
def test_adapters_equal_one_process(pool: Pool) -> None:
    """On two ranks, by a preset and a random plan."""
    works = [parity.preset_work("lora", (2,), "fsdp"), parity.random_work("lora", (2,), 0)]
    pool.run(2, parity.check_all, works)


@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.parametrize("preset", daily(["ddp", "zero2", "fsdp"], ["fsdp"]))
def test_the_plan_says_what_frozen_weights_cost(name: str, preset: str) -> None:
    """Gradients, and their traffic, are those of the parameters that train; parts of them are kept."""
    case = parity.reference(name)
    plan = Plan.from_json(parity.preset_work(name, (2,), preset).plan)
    trained = [n for n, p in case.model.named_parameters() if p.requires_grad]
    kept = [
        plan.parameter[n].stored.local_shape(plan.parameter[n].shape, plan.mesh) for n in trained
    ]
    assert plan.estimate.gradient_nbytes == sum(8 * torch.Size(shape).numel() for shape in kept)
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


@pytest.mark.thorough
@pytest.mark.parametrize("preset", daily(["zero2", "fsdp"], ["fsdp"]))
def test_no_gradient_and_no_state(pool: Pool, preset: str) -> None:
    for graded, held in pool.run(2, optimizer_state, "one_bias", preset):
        assert graded == held == {"transformer.h.1.mlp.c_fc.bias"}
    for graded, held in pool.run(2, optimizer_state, "lora", preset):
        assert graded == held and all(n.endswith((".up", ".down")) for n in held)


@pytest.mark.thorough
@pytest.mark.parametrize("name", daily(TRUNKS, ["pictures"]))
def test_a_frozen_trunk_equals_one_process(pool: Pool, name: str) -> None:
    """Two ranks; partial values without gradient and statistics of a split batch among them."""
    presets = (None, "ddp", "fsdp", "megatron")
    works = [parity.preset_work(name, (2,), preset) for preset in presets]
    works += [parity.random_work(name, (2,), seed) for seed in range(4)]
    pool.run(2, parity.check_all, works)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"), list(zip(TRUNKS, itertools.cycle([(2, 2), (4,)]), strict=False))
)
def test_a_frozen_trunk_on_four_ranks(pool: Pool, name: str, shape: tuple[int, ...]) -> None:
    works = [parity.preset_work(name, shape, p) for p in (None, "ddp", "fsdp", "fsdp_megatron")]
    if blocks(parity.reference(name).graph):
        works += [parity.preset_work(name, shape, "ddp", "full")]
    works += [parity.random_work(name, shape, seed, recomputes=seed > 1) for seed in range(3)]
    pool.run(4, parity.check_all, works)


@pytest.mark.slow
def test_a_frozen_table_is_split_where_it_is_used(pool: Pool) -> None:
    """Rows over an axis: partial results without gradient, added up by a forward all-reduce alone."""
    work = parity.constrained_work("frozen_table", (2, 2), TABLES)
    assert "vocab_parallel_embedding(" in work.source
    plan = Plan.from_json(work.plan)
    graph = parity.reference("frozen_table").graph
    words = next(n for n in graph.leaves("parameter") if n.target.endswith("wte.weight"))
    reads = [n.name for n in graph.consumers[words.outputs[0].name] if short(n.op) == "embedding"]
    table = plan.choice[reads[0]]
    assert table.inputs[0][0] == S(0) and str(table.outputs[0][0]) == "P"
    pool.run(4, parity.check_all, [work])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["probe", "pictures", "bert_head"])
def test_data_parallelism_divides_the_frozen_work(name: str) -> None:
    """And sends nothing backward for it: only the head has gradients."""
    plan = Plan.from_json(parity.preset_work(name, (2,), "ddp").plan)
    case = parity.reference(name)
    assert plan.shares[0].flops > 0.95
    trained = sum(8 * p.numel() for p in case.model.parameters() if p.requires_grad)
    sent = sum(f.nbytes for f in plan.estimate.flows if f.direction == "backward")
    assert 0 < sent <= trained


def test_the_solver_divides_a_frozen_trunk() -> None:
    """Where there is enough work, without being told to."""
    batch = {
        "ids": torch.zeros(64, 256, dtype=torch.int64),
        "labels": torch.zeros(64, dtype=torch.int64),
    }
    with torch.device("meta"):
        model = Probe(width=512).train()
    graph = with_outputs(capture(model, batch), ())
    made = compile_graph(graph, Mesh.of(2), load("h100"), Settings(), saved(graph))
    assert made.plan.shares[0].flops > 0.95


@pytest.mark.parametrize("name", ["probe", "llama_lora"])
def test_fully_sharded_frozen_weights_are_gathered_at_their_use(name: str) -> None:
    """They are held in parts, and gathered again where the backward passes through them."""
    whole, parts = (
        Plan.from_json(parity.preset_work(name, (2,), preset).plan) for preset in ("ddp", "fsdp")
    )
    assert parts.estimate.parameter_nbytes <= 0.51 * whole.estimate.parameter_nbytes
    assert parts.estimate.activation_nbytes <= whole.estimate.activation_nbytes
    frozen = {"llama_lora": "lm_head.weight", "probe": "words.weight"}[name]
    assert parts.parameter[frozen].leaf.is_split
