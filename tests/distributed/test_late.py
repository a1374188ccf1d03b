"""The loss is summed beside the backward where nobody reads it before."""

from __future__ import annotations

import pytest

from tests.distributed import late_jobs
from tests.pool import Pool


@pytest.mark.parametrize("sizes", [(2,), (2, 2)])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_loss_is_waited_for_at_the_end(
    pool: Pool, scaled: bool, sizes: tuple[int, ...]
) -> None:
    pool.run(2 * len(sizes), late_jobs.summed, scaled, sizes)
