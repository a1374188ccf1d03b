"""What an optimizer of one process gives is refused where it does not fit, and its remedy works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.habits import plain_jobs as jobs
from tests.pool import Pool


@pytest.mark.parametrize("preset", ["ddp", "fsdp"])
def test_states(pool: Pool, tmp_path: Path, preset: str) -> None:
    pool.run(1, jobs.written, str(tmp_path / "checkpoint"))
    pool.run(2, jobs.states, 2, preset, str(tmp_path / "checkpoint"))


@pytest.mark.parametrize("preset", ["ddp", "fsdp"])
def test_gradients(pool: Pool, preset: str) -> None:
    pool.run(2, jobs.gradients, 2, preset)
