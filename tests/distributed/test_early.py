"""A stage's gradients are summed while its last backward still runs, in one half or two."""

from __future__ import annotations

import pytest

from tests.daily import daily
from tests.distributed import early_jobs
from tests.pipelines import Line
from tests.pool import Pool


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", daily(["1f1b", "zb-h1"], ["zb-h1"]))
def test_sums_begin_with_the_last_gradient(pool: Pool, schedule: str) -> None:
    line = Line("gpt2", (4,), (2, 2), schedule, 2, preset="ddp")
    for buckets, begun in pool.run(4, early_jobs.launched_before, line):
        assert buckets == begun > 0
