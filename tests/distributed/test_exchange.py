"""An all-to-all moves the split of a tensor from one dim to another."""

from __future__ import annotations

import pytest

from tests.distributed import exchange_jobs
from tests.pool import Pool


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0), (2, 0), (0, 2)])
@pytest.mark.parametrize("ranks", [2, 3])
def test_it_moves_the_split(pool: Pool, ranks: int, source: int, target: int) -> None:
    pool.run(ranks, exchange_jobs.exchanged, source, target)
