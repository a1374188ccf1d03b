"""What needs whole weights: equal to one process, or refused with what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

from autopar.request.pipeline import Pipeline
from tests.habits import whole_jobs as jobs
from tests.pool import Pool


@pytest.mark.parametrize(
    "options", [{"preset": "fsdp"}, {"pipeline": Pipeline((1, 1), microbatches=2)}]
)
def test_extra_states_are_kept(pool: Pool, options: dict[str, Any]) -> None:
    pool.run(2, jobs.extra, options)


@pytest.mark.thorough
def test_methods_of_whole_models_are_refused(pool: Pool) -> None:
    pool.run(2, jobs.refused)
