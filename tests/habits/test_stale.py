"""Weights that change between a forward and its backward are noticed, also where they are gathered."""

from __future__ import annotations

from typing import Any

import pytest

from tests.habits import stale_jobs
from tests.pool import Pool

LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"preset": "ddp"},
    "fsdp": {"preset": "fsdp"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["step", "write"])
def test_an_update_between_is_noticed(pool: Pool, how: str, layout: str) -> None:
    pool.run(2, stale_jobs.updated_between, how, LAYOUTS[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_between_change_nothing(pool: Pool, layout: str) -> None:
    pool.run(2, stale_jobs.read_between, LAYOUTS[layout])
