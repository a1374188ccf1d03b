"""Operators on parameters give what one process gives, where torch's DTensor has no rule for them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daily import rotated
from tests.habits import whole_operator_jobs as jobs
from tests.pool import Pool


@pytest.mark.parametrize(
    ("name", "options"), rotated(jobs.OPERATIONS, [(way,) for way in jobs.WAYS], part=3)
)
def test_operators_are_those_of_one_process(pool: Pool, name: str, options: Any) -> None:
    pool.run(2, jobs.equal, name, options)


@pytest.mark.parametrize(
    ("name", "options"), rotated(jobs.DRAWS, [(way,) for way in jobs.WAYS[:2]])
)
def test_draws_are_those_of_the_first_rank(pool: Pool, name: str, options: Any) -> None:
    pool.run(2, jobs.equal, name, options)


def test_writes_into_slices_reach_the_parameter_or_are_refused(pool: Pool) -> None:
    pool.run(2, jobs.slices)


def test_gathered_views_are_read_only(pool: Pool) -> None:
    pool.run(2, jobs.gathered)


@pytest.mark.parametrize(
    ("name", "options"), rotated(jobs.LOSSES, [(way,) for way in jobs.WAYS[:2]])
)
def test_losses_on_weights_have_the_gradients_of_one_process(
    pool: Pool, name: str, options: Any
) -> None:
    pool.run(2, jobs.penalty, name, options)


def test_what_would_not_reach_a_parameter_is_refused(pool: Pool) -> None:
    pool.run(2, jobs.refused)


def test_beside_a_pipeline_of_one_stage(pool: Pool) -> None:
    pool.run(2, jobs.beside_a_pipeline_of_one_stage)
