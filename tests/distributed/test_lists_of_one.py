"""A list of one tensor is taken out of its list, whichever operator returns it."""

from __future__ import annotations

import pytest

from tests.distributed import list_jobs as jobs
from tests.pool import Pool


@pytest.mark.parametrize("way", jobs.WAYS)
def test_lists_of_one(pool: Pool, way: str) -> None:
    assert max(pool.run(2, jobs.trained, way, "ddp")) < 1e-9
