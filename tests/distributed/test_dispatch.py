"""Experts that tokens travel to: steps on real processes equal those of one, for four families."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import mean

import pytest
import torch
import torch.distributed as dist

import autopar
from autopar.ir.blocks import Recompute
from autopar.ops.experts import routed_experts
from autopar.plans.plan import Plan
from autopar.runtime.axes import Axis
from autopar.runtime.dispatch import expert_dispatch
from autopar.sharding.asked import posed_for
from autopar.verify import certify
from autopar.verify.witness import witness
from cost_models.hardware import load
from tests import parity, peaks
from tests.daily import daily
from tests.distributed.test_memory import live_after_forward
from tests.mixtures import MIXTURES
from tests.parity import Work
from tests.pool import Pool

CALL = "expert_dispatch("
EXPERTS = "used:*.experts.*"


def on_one_axis(name: str) -> Work:
    """Tokens and experts are split over the same two ranks."""
    return parity.constrained_work(
        f"mixtures.{name}", (2,), {EXPERTS: "[S(0)]", "*/routed_experts": "[S(0)]"}
    )


def beside_data(name: str) -> Work:
    """Tokens are split over both axes, experts over the last; weights rest sharded over the first."""
    return parity.constrained_work(
        f"mixtures.{name}",
        (2, 2),
        {EXPERTS: "[R, S(0)]", "leaf:*.experts.*": "[S, S(0)]", "*/routed_experts": "[S(0), S(0)]"},
    )


def inside_tensors(name: str) -> Work:
    """Every expert is split over the first axis; tokens travel along the last."""
    up, down = ("S(2)", "S(1)") if name == "gpt_oss" else ("S(1, of=2)", "S(2)")
    pinned = {
        f"used:*.experts.{key}": f"[{kind}, S(0)]"
        for key, kind in (("gate_up_proj", up), ("down_proj", down))
    }
    return parity.constrained_work(
        f"mixtures.{name}", (2, 2), {**pinned, "*/routed_experts": "[P, S(0)]"}
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", daily(list(MIXTURES), ["gpt_oss"], part=3))
def test_two_ranks(pool: Pool, name: str) -> None:
    """Every rank sends rows to the other and to itself, different numbers in every layer."""
    work = on_one_axis(name)
    assert CALL in work.source
    pool.run(2, parity.check_all, [work])


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXTURES)
def test_four_ranks(pool: Pool, name: str) -> None:
    works = [beside_data(name), inside_tensors(name)]
    assert all(CALL in work.source for work in works)
    pool.run(4, parity.check_all, works)


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXTURES)
def test_presets(pool: Pool, name: str) -> None:
    """Experts over the last axis, everything else over both; blocks that dispatch again backward."""
    asked: tuple[tuple[str, Recompute | None], ...] = (
        ("experts", None), ("zero2_experts", "selective"), ("fsdp_experts", "full"),
    )  # fmt: skip
    works = [parity.preset_work(f"mixtures.{name}", (2, 2), *each) for each in asked]
    assert all(CALL in work.source for work in works)
    pool.run(4, parity.check_all, works)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_memory(pool: Pool, name: str) -> None:
    """Ranks hold what comes to them; their mean is what the plan says, with balanced experts."""
    work = on_one_axis(name)
    estimate = Plan.from_json(work.plan).estimate
    held = [held for held, _ in pool.run(2, live_after_forward, work)]
    assert held[0] != held[1]
    assert mean(held) == pytest.approx(estimate.activation_nbytes, rel=1e-3)
    found = pool.run(2, peaks.peaks, work)
    moving = estimate.activation_nbytes + estimate.working_nbytes
    assert mean(each.most - each.rest for each in found) == pytest.approx(moving, rel=0.1)


@pytest.mark.slow
def test_plans_are_certified() -> None:
    """Decisions that split a pair of factors are candidates, and all figures follow from them."""
    model, inputs, _ = MIXTURES["mixtral"]()
    constraints = {EXPERTS: {"y": "S(0)"}, "*/routed_experts": "[S(0), S(0)]"}
    hardware = load("h100")
    made = autopar.compile_model(model, (2, 2), inputs, hardware=hardware, constraints=constraints)
    assert CALL in made.source
    plan = Plan.from_json(made.plan.to_json())
    checks = certify(plan, posed_for(plan, made.graph, hardware))
    assert not [check for check in checks if not check.ok]
    assert not [said for said in witness(plan, made.graph) if said.kind == "contradicts"]


def uneven(chosen_of: list[list[list[int]]]) -> None:
    """One step of two experts on each rank, in which the ranks' tokens chose as given."""
    rank, size = dist.get_rank(), dist.get_world_size()
    made = torch.Generator().manual_seed(0)
    shapes = (
        (6, 5),
        (6, 2),
        (2 * size, 8, 5),
        (2 * size, 7, 4),
        (2 * size, 8),
        (2 * size, 7),
        (6, 7),
    )
    x, weights, *matrices, fed = (
        torch.randn(size * s[0] if s[0] == 6 else s[0], *s[1:], generator=made, dtype=torch.float64)
        for s in shapes
    )
    chosen = torch.tensor(chosen_of).flatten(0, 1)

    def step(
        function: Callable[..., torch.Tensor], tokens: slice, experts: slice
    ) -> list[torch.Tensor]:
        leaves = [x[tokens], weights[tokens], *(matrix[experts] for matrix in matrices)]
        x_, weights_, up, down, *biases = (leaf.clone().requires_grad_() for leaf in leaves)
        out = function(x_, chosen[tokens], weights_, up, down, "silu", *biases)
        trained = x_, weights_, up, down, *biases
        return [out, *torch.autograd.grad(out, trained, fed[tokens])]

    axis = Axis("x", dist.group.WORLD, rank, size)  # type: ignore[arg-type]
    every = slice(None)
    tokens, experts = slice(6 * rank, 6 * rank + 6), slice(2 * rank, 2 * rank + 2)
    got = step(partial(expert_dispatch, axis=axis), tokens, experts)
    want = step(routed_experts, every, every)
    for place, (mine, whole) in enumerate(zip(got, want, strict=True)):
        torch.testing.assert_close(mine, whole[tokens if place < 3 else experts])


@pytest.mark.parametrize("backend", ["gloo", "strict"])
def test_ranks_to_which_nothing_comes(backend: str) -> None:
    """All rows go to one rank, or none goes anywhere, as choices that are no expert's number."""
    pool = Pool(backend)
    try:
        for choices in ([[0, 1]] * 6, [[3, 2]] * 6, [[-1, 4]] * 6, [[0, 9], [-3, 3]] * 3):
            pool.run(2, uneven, [choices] * 2)
        pool.run(2, uneven, [[[0, 0]] * 6, [[7, -7]] * 6])
    finally:
        pool.stop()
