"""Gradients that stay between backwards: sums are those of one process, and take no second place."""

from __future__ import annotations

import pytest

from tests.daily import daily
from tests.distributed import staying_jobs
from tests.pool import Pool


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("preset", "shape"),
    daily(
        [("ddp", (2,)), ("zero2", (2,)), ("fsdp", (2,)), ("zero2", (2, 2)), ("hsdp", (2, 2))],
        [("hsdp", (2, 2))],
    ),
)
def test_gradients_add_up_as_in_one_process(
    pool: Pool, preset: str, shape: tuple[int, ...]
) -> None:
    ranks = 2 if shape == (2,) else 4
    pool.run(ranks, staying_jobs.equal, preset, shape)


@pytest.mark.parametrize("preset", ["ddp", "zero2"])
def test_a_bucket_adds_to_the_gradients_in_it(pool: Pool, preset: str) -> None:
    pool.run(2, staying_jobs.in_place, preset)
