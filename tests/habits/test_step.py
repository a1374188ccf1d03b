"""The life of a step: what fails, what is asked of gradients, each as in one process or refused."""

from __future__ import annotations

import pytest

from tests.daily import rotated
from tests.habits import step_jobs
from tests.pool import Pool


@pytest.mark.parametrize(
    ("name", "ranks", "preset"),
    rotated(
        step_jobs.HABITS,
        [(2, "ddp"), (2, "fsdp"), (2, "megatron"), (1, None), (2, None), (4, "zero2")],
    ),
)
def test_a_habit(pool: Pool, name: str, ranks: int, preset: str | None) -> None:
    pool.run(ranks, step_jobs.habit, ranks, preset, name)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_stages_refuse(pool: Pool, schedule: str) -> None:
    pool.run(2, step_jobs.stages_refuse, schedule)
