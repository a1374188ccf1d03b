"""A parallel step equals the single-process step: loss, gradients, weights, buffers, traffic."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from autopar.ir.collectives import OWN_OF
from autopar.ir.placement import letter_of
from autopar.plans.plan import Plan
from autopar.request import presets
from tests import composite, models, parity
from tests.daily import daily
from tests.pool import Pool

MESHES = ((2,), (4,), (2, 2))
ELSEWHERE = ("context_parallel", "ring_attention", "ulysses", "experts")
"""Presets whose names contain one of these have tests of their own (test_sequences, test_dispatch)."""
PRESETS = (None, *(n for n in presets.names() if not any(each in n for each in ELSEWHERE)))
EVERY_DAY = [
    pytest.param(n, marks=pytest.mark.slow) if n in ("bert", "cnn", "gpt2") else n
    for n in models.ALL
]
"""BERT, the CNN and GPT-2 meet what the others meet, and are left to the slow run."""
STEPS = {pair for pair in OWN_OF if "N" not in pair}
"""The conversions of tensors with gradient."""
EVERYDAY, MORE = 2, 4
"""How many random plans are tried per model: every day, and in the slow run; `benchmarks/parity.py` has
a hundred."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", EVERY_DAY)
def test_presets(pool: Pool, name: str) -> None:
    """Every other preset, by model the even or the odd ones, rotating over meshes; the slow run does
    the full product."""
    works = [
        parity.preset_work(name, MESHES[(i + len(name)) % len(MESHES)], preset)
        for i, preset in enumerate(PRESETS)
        if i % 2 == list(models.ALL).index(name) % 2
    ]
    run(pool, works)


@pytest.mark.parametrize("name", daily(composite.ALL, ["composite.lined", "composite.pooled"]))
def test_what_is_not_of_one_piece(pool: Pool, name: str) -> None:
    """Operators of several kernels, blocks that the model calls part by part."""
    places = (((2,), "fsdp"), ((2,), "megatron_sp"), ((2, 2), "fsdp_megatron"))
    run(pool, [parity.preset_work(name, shape, preset) for shape, preset in places])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", MESHES)
@pytest.mark.parametrize("name", models.CASES)
def test_presets_on_every_mesh(pool: Pool, name: str, shape: tuple[int, ...]) -> None:
    """The full product."""
    run(pool, [parity.preset_work(name, shape, preset) for preset in PRESETS])


@pytest.mark.thorough
@pytest.mark.parametrize("name", daily(models.ALL, ["mlp", "odds"]))
def test_random_plans(pool: Pool, name: str) -> None:
    """A few random plans on every mesh."""
    run(pool, [parity.random_work(name, s, 1000 + i) for i in range(EVERYDAY) for s in MESHES])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", MESHES)
@pytest.mark.parametrize("name", models.CASES)
def test_many_random_plans(pool: Pool, name: str, shape: tuple[int, ...]) -> None:
    run(pool, [parity.random_work(name, shape, seed) for seed in range(MORE)])


@pytest.mark.slow
def test_random_plans_cover_every_conversion() -> None:
    """The everyday plans together use every type and every step of the algebra."""
    found: Counter[tuple[str, str]] = Counter()
    for name in models.CASES:
        plans = [
            Plan.from_json(parity.random_work(name, shape, 1000 + i).plan)
            for i in range(EVERYDAY)
            for shape in MESHES
        ]
        found += conversions(plans, name)
    assert set(found) >= STEPS, STEPS - set(found)


def conversions(plans: list[Plan], name: str) -> Counter[tuple[str, str]]:
    """How often each step occurs on tensors with gradient, parameters at rest included."""
    tensors = parity.reference(name).graph.tensors
    return Counter(
        (letter_of(c.source[c.axis]), letter_of(c.target[c.axis]))
        for plan in plans
        for c in (*plan.conversions, *(s for p in plan.parameters for s in p.steps))
        if tensors[c.tensor].differentiable
    )


def run(pool: Pool, works: list[parity.Work]) -> None:
    """Check plans in as many processes as their meshes have devices."""
    by_size: dict[int, list[parity.Work]] = {}
    for work in works:
        size = math.prod(Plan.from_json(work.plan).mesh.sizes)
        by_size.setdefault(size, []).append(work)
    for size, group in by_size.items():
        pool.run(size, parity.check_all, group, limit_s=60 + 10 * len(group))
