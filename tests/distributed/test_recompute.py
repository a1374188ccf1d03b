"""Recomputed blocks: the same numbers, the predicted traffic, less memory."""

from __future__ import annotations

import math
from itertools import product

import pytest

from autopar.ir.blocks import Recompute
from autopar.plans.plan import Plan
from tests import parity
from tests.daily import daily
from tests.distributed import jobs, retained_jobs
from tests.distributed.test_parity import MESHES, MORE, run
from tests.pool import Pool


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param("gpt2", "selective", marks=pytest.mark.slow),
        ("llama", "full"),
        pytest.param("bert", "selective", marks=pytest.mark.slow),
    ],
)
def test_every_block(pool: Pool, name: str, mode: Recompute) -> None:
    """The solver's plan and two presets in which all blocks do the same."""
    presets = (None, "fsdp", "megatron_sp")
    run(pool, [parity.preset_work(name, (2, 2), preset, mode) for preset in presets])


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_gathers_of_activations(pool: Pool, name: str) -> None:
    """Sequence parallelism as Megatron-LM has it: shards are kept, and gathered again."""
    work, kept = (
        parity.preset_work(name, (2, 2), "zero2_megatron_sp", "none", regathers)
        for regathers in (True, False)
    )
    plans = [Plan.from_json(each.plan) for each in (work, kept)]
    weights = {p.name.replace(".", "_") for p in plans[0].parameters}
    assert any(c.regather and c.tensor not in weights for c in plans[0].conversions)
    assert plans[0].estimate.activation_nbytes < plans[1].estimate.activation_nbytes
    assert plans[0].estimate.exposed_s > plans[1].estimate.exposed_s
    assert plans[0].asked.regathers and not plans[1].asked.regathers
    run(pool, [work])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama"])
def test_random_plans_of_random_blocks(pool: Pool, name: str) -> None:
    run(pool, [parity.random_work(name, s, 3000 + i, True) for i in range(1) for s in MESHES])


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["ddp", pytest.param("fsdp_megatron", marks=pytest.mark.slow)])
def test_dropout_draws_the_same_numbers_again(pool: Pool, preset: str) -> None:
    mesh = (2,) if preset == "ddp" else (2, 2)
    for found in pool.run(math.prod(mesh), jobs.recomputed_dropout, mesh, preset):
        assert found["selective"] == pytest.approx(found["none"], rel=1e-5, abs=1e-8)
        assert found["full"] == pytest.approx(found["none"], rel=1e-5, abs=1e-8)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "shape"), list(zip(["gpt2", "llama", "bert"], MESHES, strict=True))
)
def test_many_random_plans_of_random_blocks(pool: Pool, name: str, shape: tuple[int, ...]) -> None:
    run(pool, [parity.random_work(name, shape, 4000 + i, True) for i in range(MORE)])


@pytest.mark.parametrize(
    ("preset", "mode"),
    daily([*product(("fsdp", "megatron"), ("selective", "full"))], [("fsdp", "selective")]),
)
def test_several_backwards_of_one_graph(pool: Pool, preset: str, mode: Recompute) -> None:
    pool.run(2, retained_jobs.retained, preset, mode)


@pytest.mark.parametrize(
    ("schedule", "mode"),
    daily(
        [*product(("zb-h1", "zb-h2", "zb-v", "dualpipe-v"), ("selective", "full"))],
        [("zb-v", "selective")],
    ),
)
def test_a_backward_in_two_parts(pool: Pool, schedule: str, mode: Recompute) -> None:
    pool.run(2, retained_jobs.split, schedule, mode)
