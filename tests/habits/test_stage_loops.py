"""On stages, numbers over several parameters are those of the whole model, or refused."""

from __future__ import annotations

import pytest

from tests.habits import stage_loop_jobs as jobs
from tests.pool import Pool


def test_loops_over_own_parameters_are_refused(pool: Pool) -> None:
    pool.run(2, jobs.refused)


def test_numbers_of_one_parameter(pool: Pool) -> None:
    pool.run(2, jobs.of_one_parameter)
    pool.run(2, jobs.in_other_steps)


def test_penalties_that_are_sums(pool: Pool) -> None:
    pool.run(2, jobs.penalties)


@pytest.mark.parametrize(
    ("preset", "ranks"),
    [
        ("stages", 2),
        ("fsdp", 2),
        ("ddp", 1),
        pytest.param("fsdp in stages", 4, marks=pytest.mark.slow),
    ],
)
def test_reductions_over_all_parameters(pool: Pool, preset: str, ranks: int) -> None:
    pool.run(ranks, jobs.reductions, preset)


def test_a_function_that_fails_on_one_stage(pool: Pool) -> None:
    pool.run(2, jobs.fails_on_one_stage)
