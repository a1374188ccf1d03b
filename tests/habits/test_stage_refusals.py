"""What only the ranks of one stage refuse is refused on all, within seconds."""

from __future__ import annotations

import pytest

from tests.daily import rotated
from tests.habits import stage_refusal_jobs as jobs
from tests.pool import Pool


@pytest.mark.parametrize(("kind", "rank"), rotated(jobs.SPOILS, [0, 1]))
def test_steps(pool: Pool, kind: str, rank: int) -> None:
    pool.run(2, jobs.steps, kind, rank)


def test_evaluations(pool: Pool) -> None:
    pool.run(2, jobs.evaluation, 1)


@pytest.mark.parametrize("on", [(0,), (1,), (0, 1)])
def test_updates(pool: Pool, on: tuple[int, ...]) -> None:
    pool.run(2, jobs.updates, on)


def test_asynchronous_schedules(pool: Pool) -> None:
    pool.run(2, jobs.asynchronous, 1)


def test_state_dicts(pool: Pool) -> None:
    pool.run(2, jobs.loads, 1)


def test_parameters_of_other_stages(pool: Pool) -> None:
    pool.run(2, jobs.of_other_stage)
