"""Loops that differ between ranks are refused in the next step; loops that do not never are."""

from __future__ import annotations

import pytest

from tests.habits import loop_jobs
from tests.pool import Pool


@pytest.mark.parametrize("preset", ["fsdp", "ddp"])
@pytest.mark.parametrize("name", loop_jobs.DIFFERENT)
def test_a_difference(pool: Pool, name: str, preset: str) -> None:
    pool.run(2, loop_jobs.different, name, preset)


@pytest.mark.parametrize("preset", ["fsdp", "ddp", None])
def test_no_false_alarm(pool: Pool, preset: str | None) -> None:
    pool.run(2, loop_jobs.alike, preset)


def test_stages_differ_as_they_may(pool: Pool) -> None:
    pool.run(2, loop_jobs.stages)


@pytest.mark.parametrize("models", [1, 2])
def test_one_thread_at_a_time(pool: Pool, models: int) -> None:
    pool.run(2, loop_jobs.two_threads, models)
