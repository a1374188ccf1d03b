"""Weights that are gathered one block ahead: the same numbers and bytes, in the predicted memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from autopar.ir.blocks import Recompute
from tests import models, parity, peaks
from tests.daily import daily
from tests.distributed import ahead_jobs
from tests.distributed.test_parity import MESHES, run
from tests.pool import Pool

NEAR = 0.005
"""How close a plan's peak comes to what is counted."""
GATHERS = "prefetch=True"
"""What a loop says that gathers ahead."""


@pytest.fixture(autouse=True)
def prefetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plan whose weights can be gathered ahead does it, whatever that gains."""
    monkeypatch.setattr("autopar.sharding.assemble.WORTH", math.inf)


PLACES = [
    ("deep.gpt2", (2,), "fsdp", "none"),
    ("deep.llama", (2,), "fsdp", "full"),
    ("deep.bert", (2,), "fsdp", "selective"),
    ("deep.llama", (2, 2), "fsdp_megatron", "none"),
    ("deep.gpt2", (2, 2), "hsdp", "full"),
    ("deep.llama", (2, 2), "fsdp", "none"),
    ("deep.bert", (2, 2), "fsdp", "full"),
    ("deep.gpt2", (4,), "fsdp", "none"),
    ("deep.llama", (2, 2), "fsdp_megatron", "selective"),
    ("deep.bert", (2, 2), "hsdp", "none"),
    ("architectures.vit", (2,), "fsdp", "none"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "shape", "preset", "recompute"), daily(PLACES, PLACES[:1]))
def test_presets(
    pool: Pool, name: str, shape: tuple[int, ...], preset: str, recompute: Recompute
) -> None:
    work = parity.preset_work(name, shape, preset, recompute)
    assert GATHERS in work.source
    run(pool, [work])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"), [(name, shape) for name in models.DEEP for shape in MESHES]
)
def test_random_plans_of_equal_blocks(pool: Pool, name: str, shape: tuple[int, ...]) -> None:
    works = [parity.random_work(name, shape, seed, True, alike=True) for seed in range(3)]
    assert any("for block in" in work.source for work in works)
    run(pool, works)


@pytest.mark.slow
def test_some_random_plans_gather_ahead() -> None:
    """Or the test of them would be of plans that do not."""
    sources = [
        parity.random_work(name, shape, seed, True, alike=True).source
        for name in models.DEEP
        for shape in MESHES
        for seed in range(6)
    ]
    assert sum(GATHERS in source for source in sources) >= 6


MEMORY = [
    ("heavy.encoder", (2,), "fsdp", "none"),
    ("heavy.pairs", (2,), "fsdp", "none"),
    ("deep.llama", (2,), "fsdp", "none"),
    ("heavy.encoder", (2,), "fsdp", "full"),
    ("heavy.encoder", (2,), "fsdp", "selective"),
    ("heavy.encoder", (2, 2), "fsdp_megatron", "none"),
    ("heavy.encoder", (2, 2), "hsdp", "none"),
    ("heavy.encoder", (2, 2), "fsdp", "full"),
    ("heavy.shared", (2,), "fsdp", "none"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "shape", "preset", "recompute"), daily(MEMORY, MEMORY[1:2]))
def test_memory(
    pool: Pool, name: str, shape: tuple[int, ...], preset: str, recompute: Recompute
) -> None:
    """Two blocks' weights are there at a time."""
    plan, made = peaks.planned(name, shape, recompute, preset)
    assert plan.prefetch and GATHERS in made.source
    found = pool.run(math.prod(shape), peaks.peaks, made)[0]
    assert plan.estimate.memory_nbytes == pytest.approx(found.most, rel=NEAR)


def test_gathers_start_one_block_ahead(pool: Pool) -> None:
    """In the forward before a block runs, in the backward when the block behind has its weights."""
    work = parity.preset_work("deep.llama", (2,), "fsdp", "none")
    forward, backward = pool.run(2, ahead_jobs.order, work)[0]
    assert forward == [
        "start 0",
        "start 1",
        "run 0",
        "start 2",
        "run 1",
        "start 3",
        "run 2",
        "run 3",
    ]
    steps = ["again 3", "again 2", "done 3", "again 1", "done 2", "again 0", "done 1", "done 0"]
    assert backward == steps


PLACES_OF_HABITS = [((2,), "fsdp", "none"), ((2,), "fsdp", "full"), ((2, 2), "hsdp", "none")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shape", "preset", "recompute"), daily(PLACES_OF_HABITS, PLACES_OF_HABITS[1:2])
)
@pytest.mark.parametrize("habit", [ahead_jobs.evaluated, ahead_jobs.failed, ahead_jobs.accumulated])
def test_habits(
    pool: Pool,
    habit: Callable[[parity.Work], None],
    shape: tuple[int, ...],
    preset: str,
    recompute: Recompute,
) -> None:
    """Failures, evaluation, retained graphs, accumulation, with gradients on their way."""
    work = parity.preset_work("deep.llama", shape, preset, recompute)
    assert GATHERS in work.source
    pool.run(math.prod(shape), habit, work)


@pytest.mark.thorough
@pytest.mark.parametrize(("shape", "preset", "recompute"), PLACES_OF_HABITS)
def test_the_backward_goes_on(
    pool: Pool, shape: tuple[int, ...], preset: str, recompute: Recompute
) -> None:
    """Nothing else waits for a reduction; the gradients of four blocks are summed in four."""
    work = parity.preset_work("deep.llama", shape, preset, recompute)
    for events in pool.run(math.prod(shape), ahead_jobs.waits, work):
        assert events == ["next", "next", "next", "end"]
