"""Attention of sequences that are split over ranks equals that of the single process."""

from __future__ import annotations

import itertools

import pytest

from autopar.ir.blocks import Recompute
from autopar.ir.graph import short
from autopar.plans.plan import Plan
from tests import parity, peaks
from tests.daily import daily
from tests.pool import Pool

MODELS, LAYERS = ("deep.gpt2", "deep.llama"), 4
"""The second has fewer heads of keys and values than of queries."""
ROWS, RING = "sequence_parallel_attention", "ring_attention"


def checked(pool: Pool, work: parity.Work) -> Plan:
    """Run the plan's step on its ranks; losses, gradients, weights and traffic are as they should be."""
    plan = Plan.from_json(work.plan)
    pool.run(plan.mesh.world_size, parity.check_all, [work], limit_s=300)
    return plan


def computed_by(plan: Plan) -> list[str]:
    """The local implementations of the plan's operators."""
    return [choice.sharding.variant for choice in plan.choices if choice.sharding.variant]


def gathered(name: str, plan: Plan) -> list[str]:
    """The operators whose results are all-gathered on the last axis."""
    graph, axis = parity.reference(name).graph, len(plan.mesh) - 1
    return [
        graph.producer[step.tensor].path
        for step in plan.conversions
        if graph.producer[step.tensor].op != "parameter" and step.axis == axis
        for verbs in [step.step.collectives(graph.tensors[step.tensor].differentiable)]
        if verbs is not None and verbs[0] == "all_gather"
    ]


@pytest.mark.parametrize(
    ("name", "ranks"),
    daily([*itertools.product(MODELS, [2, 4])], [("deep.gpt2", 2)]),
)
def test_a_sequence_on_one_axis(pool: Pool, name: str, ranks: int) -> None:
    """From the embedding to the loss nothing is gathered but keys and values."""
    plan = checked(pool, parity.preset_work(name, (ranks,), "context_parallel"))
    assert computed_by(plan) == [ROWS] * LAYERS
    assert len(gathered(name, plan)) == 2 * LAYERS


@pytest.mark.parametrize(
    ("name", "ranks"),
    daily([*itertools.product(MODELS, [2, 4])], [("deep.gpt2", 4), ("deep.llama", 2)]),
)
def test_keys_and_values_pass_around_a_ring(pool: Pool, name: str, ranks: int) -> None:
    """No activation is ever whole."""
    plan = checked(pool, parity.preset_work(name, (ranks,), "ring_attention"))
    assert computed_by(plan) == [RING] * LAYERS
    assert not gathered(name, plan)


@pytest.mark.parametrize("name", daily(MODELS, MODELS[:1]))
def test_positions_are_exchanged_for_heads(pool: Pool, name: str) -> None:
    plan = checked(pool, parity.preset_work(name, (2,), "ulysses"))
    graph = parity.reference(name).graph
    attention = [
        plan.choice[node.name]
        for node in graph.nodes
        if short(node.op) == "scaled_dot_product_attention"
    ]
    assert [str(form) for s in attention for form in s.inputs] == ["[S(1)]"] * 3 * LAYERS
    assert len(attention) == LAYERS and not computed_by(plan)


@pytest.mark.slow
@pytest.mark.parametrize("name", daily(MODELS, MODELS[1:]))
def test_positions_on_two_axes(pool: Pool, name: str) -> None:
    """One axis splits the rows of attention, the other its heads; all else by positions on both."""
    plan = checked(pool, parity.preset_work(name, (2, 2), "context_parallel+ulysses"))
    assert computed_by(plan) == [ROWS] * LAYERS


@pytest.mark.parametrize("mode", daily(["selective", "full"], ["selective"]))
def test_recomputed_attention_exchanges_what_is_counted(pool: Pool, mode: Recompute) -> None:
    """Selective recomputation keeps the result of attention and exchanges nothing again."""
    plan = checked(pool, parity.preset_work("deep.llama", (2,), "context_parallel", mode))
    assert list(plan.recompute_of.values()) == [mode] * LAYERS


BESIDE = [("S(2), else R", "S(1)"), ("S(1)", "S(2), else R"), ("S(2), else R", "S(0)")]
"""What attention is split by on two axes: rows of the sequence, beside heads or samples."""


@pytest.mark.parametrize(("outer", "inner"), daily(BESIDE, BESIDE[:1]))
@pytest.mark.parametrize("name", daily(MODELS, MODELS[1:]))
def test_rows_beside_heads_and_samples(pool: Pool, name: str, outer: str, inner: str) -> None:
    """Between activations that are split otherwise."""
    asked = {"*scaled_dot_product_attention": {"x": outer, "y": inner}}
    plan = checked(pool, parity.constrained_work(name, (2, 2), asked))
    assert len(computed_by(plan)) == LAYERS and set(computed_by(plan)) <= {ROWS, RING}


MODES = ["none", "selective", "full"]


@pytest.mark.parametrize(
    ("name", "preset", "recompute"),
    daily(
        [*itertools.product(["gpt2", "llama"], ["context_parallel", "ring_attention"], MODES)],
        [("gpt2", "ring_attention", "selective")],
    ),
)
def test_its_memory_is_what_the_plan_says(
    pool: Pool, name: str, preset: str, recompute: Recompute
) -> None:
    plan, made = peaks.planned(name, 2, recompute, preset)
    found = pool.run(2, peaks.peaks, made, limit_s=300)[0]
    assert plan.estimate.memory_nbytes == pytest.approx(found.most, rel=0.001)
