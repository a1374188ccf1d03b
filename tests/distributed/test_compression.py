"""Gradients that travel compressed: exact where they can be, and over time nothing is left out."""

from __future__ import annotations

import math

import pytest

from tests import peaks
from tests.daily import daily, rotated
from tests.distributed import compression_jobs as jobs
from tests.pool import Pool

EXACT = [
    ("powersgd", "ddp", (2,)),
    ("powersgd", "zero2", (2,)),
    ("powersgd", "ddp", (2, 2)),
    ("powersgd@x", "ddp", (2, 2)),
    ("powersgd@x", "zero2", (2, 2)),
    ("powersgd", "zero2", (2, 2)),
    ("powersgd:6", "ddp", (4,)),
]
LOSSY = [
    ("powersgd:2", "ddp", (2,)),
    ("powersgd:2", "zero2", (2,)),
    ("powersgd:2", "ddp", (4,)),
    ("powersgd:2@y", "ddp", (2, 2)),
    *((method, preset, (ranks,)) for method in ("int8", "fp8") for preset in ("ddp", "zero2")
      for ranks in (2, 4)),
    ("int8@y", "ddp", (2, 2)),
]  # fmt: skip
EVERYDAY = [("powersgd", "ddp", (2,)), ("powersgd:2", "ddp", (2,)), ("int8", "zero2", (2,)),
            ("fp8", "ddp", (2,))]  # fmt: skip
METHODS = ("powersgd", "int8", "fp8")


@pytest.mark.thorough
@pytest.mark.parametrize(("compression", "preset", "shape"), daily(EXACT, EVERYDAY))
def test_wide_factors_are_exact(
    pool: Pool, compression: str, preset: str, shape: tuple[int, ...]
) -> None:
    pool.run(math.prod(shape), jobs.equal, compression, preset, shape)


@pytest.mark.thorough
@pytest.mark.parametrize(("compression", "preset", "shape"), daily(LOSSY, EVERYDAY))
def test_nothing_is_lost(pool: Pool, compression: str, preset: str, shape: tuple[int, ...]) -> None:
    pool.run(math.prod(shape), jobs.nothing_is_lost, compression, preset, shape)


@pytest.mark.thorough
@pytest.mark.parametrize(("compression", "preset", "shape"), daily([*EXACT, *LOSSY], EVERYDAY))
def test_traffic_is_what_the_plan_says(
    pool: Pool, compression: str, preset: str, shape: tuple[int, ...]
) -> None:
    pool.run(math.prod(shape), jobs.traffic, compression, preset, shape)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("compression", "preset"),
    rotated(["int8@x", "fp8@y", "int8", "powersgd:2@y"], ["ddp", "zero2"]),
)
def test_sizes_that_blocks_do_not_divide(pool: Pool, compression: str, preset: str) -> None:
    """Matrices of 72 x 72 are padded in their bucket, also on the axis on which they travel exactly."""
    pool.run(4, jobs.traffic, compression, preset, (2, 2), 72)


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["ddp", "zero2"])
def test_sums_of_several_backwards(pool: Pool, preset: str) -> None:
    pool.run(2, jobs.accumulates, "powersgd:6", preset)


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "preset"), rotated(METHODS, ["ddp", "zero2"]))
def test_each_backward_travels_once(pool: Pool, method: str, preset: str) -> None:
    pool.run(2, jobs.travels_once, method, preset)


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "preset"), rotated(METHODS, ["ddp", "zero2"]))
def test_a_failed_backward_leaves_nothing(pool: Pool, method: str, preset: str) -> None:
    pool.run(2, jobs.fails, method, preset)


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "preset"), rotated(METHODS, ["ddp", "zero2"]))
def test_an_overflow_leaves_nothing(pool: Pool, method: str, preset: str) -> None:
    pool.run(2, jobs.overflows, method, preset)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("compression", "preset"), rotated(["powersgd:2", "int8"], ["ddp", "zero2"])
)
def test_a_step_needs_what_the_plan_says(pool: Pool, compression: str, preset: str) -> None:
    plan, made = peaks.planned("heavy.mixer", 2, "none", preset, compression=compression)
    found = pool.run(2, peaks.peaks, made)[0]
    assert plan.estimate.memory_nbytes == pytest.approx(found.most, rel=0.005)


def test_exact_steps_first(pool: Pool) -> None:
    pool.run(2, jobs.begins_late, "ddp")


@pytest.mark.parametrize("method", ["int8", "fp8"])
def test_rounding(pool: Pool, method: str) -> None:
    pool.run(2, jobs.rounds, method)
