"""Gradients that somebody keeps, as they were."""

from __future__ import annotations

import pytest

from tests.distributed import kept_jobs
from tests.pool import Pool


@pytest.mark.parametrize("preset", ["ddp", "zero2", "fsdp"])
def test_a_gradient_that_is_kept_is_not_written_over(pool: Pool, preset: str) -> None:
    pool.run(2, kept_jobs.kept, preset)
