"""Pipelines on real processes: every schedule, unequal meshes, skips, ties, random plans."""

from __future__ import annotations

import itertools

import pytest

from autopar.pipeline.schedules import SCHEDULES
from tests.daily import daily
from tests.pipelines import Line, check_lines
from tests.pool import Pool

NAMES = ("gpt2", "llama", "architectures.t5", "architectures.unet")
DEEP = ((2, 2), (1, 3), (1, 1, 2), (1, 1, 1, 1))
SYNCHRONOUS = tuple(name for name, known in SCHEDULES.items() if not known.asynchronous)

LINES = [
    Line("gpt2", (4,), (2, 2), "1f1b", 2),
    Line("gpt2", (4,), (1, 3), "zb-h1", 4),
    Line("llama", (4,), ((1, 2), 1, 1), "gpipe", 2),
    Line("mlp", (4,), (2, 2), "zb-v", 2),
    Line("architectures.t5", (4,), (2, 1, 1), "1f1b", 2),
]


@pytest.mark.thorough
@pytest.mark.parametrize("line", daily(LINES, [LINES[0], LINES[3]]), ids=str)
def test_equal(pool: Pool, line: Line) -> None:
    pool.run(4, check_lines, [line])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_plans(pool: Pool, seed: int) -> None:
    stages = ((2, 2), (1, 3), (1, 1, 2))[seed % 3]
    pool.run(4, check_lines, [Line("gpt2", (4,), stages, "1f1b", 2, seed)])


def least_microbatches(schedule: str, workers: int) -> int:
    """Two; dualpipe-v takes no fewer than two per worker, and batches of eight are cut evenly."""
    return {2: 4, 3: 8, 4: 8}[workers] if schedule == "dualpipe-v" else 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        (NAMES[(turn + place) % len(NAMES)], schedule)
        for turn, schedule in enumerate(SYNCHRONOUS)
        for place in (0, 2)
    ],
)
def test_every_schedule(pool: Pool, name: str, schedule: str) -> None:
    """Each with two of the models, in turn over meshes; `benchmarks/parity.py` has the product."""
    every = DEEP if schedule != "chimera" else [each for each in DEEP if len(each) % 2 == 0]
    stages = every[(SYNCHRONOUS.index(schedule) + NAMES.index(name)) % len(every)]
    least = least_microbatches(schedule, len(stages))
    pool.run(4, check_lines, [Line(name, (4,), stages, schedule, least)])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), list(itertools.product(["gpt2", "llama"], range(6))))
def test_more_random_plans(pool: Pool, name: str, seed: int) -> None:
    stages = ((2, 2), (1, 3), (1, 1, 2), (1, (1, 3)), ((2, 1), (1, 2)))[seed % 5]
    schedule = ("1f1b", "zb-h1", "gpipe", "interleaved")[seed % 4]
    pool.run(4, check_lines, [Line(name, (4,), stages, schedule, 2, 100 + seed)])
