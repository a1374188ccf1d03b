"""Random training programs: every sequence of everyday actions equals that of the plain model."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.habits import training_run
from tests.habits.training_machine import machine
from tests.pool import Pool

EVERYDAY, LONG, ACTIONS = 300, 700, 8
"""Programs, and how many actions each has; `benchmarks/training_programs` runs ten thousand."""


def _run(pool: Pool, programs: int) -> None:
    """Each is drawn, run, and made shorter if it fails."""
    run_state_machine_as_test(
        machine(partial(training_run.run, pool)),
        settings=settings(
            max_examples=programs, stateful_step_count=ACTIONS, print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


@pytest.mark.timeout(1200)
def test_programs(pool: Pool) -> None:
    _run(pool, EVERYDAY)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_programs(pool: Pool) -> None:
    _run(pool, LONG)
