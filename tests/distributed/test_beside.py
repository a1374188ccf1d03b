"""Gradients have groups of their own where the backward communicates on the axis of their sums."""

from __future__ import annotations

import pytest

from tests.distributed import beside_jobs
from tests.pool import Pool


@pytest.mark.parametrize(
    ("pinned", "apart"),
    [
        ({"c/linear": "[S(0)]", "a/linear": "[S(1)]"}, True),
        ({"c/linear": "[S(0)]", "a/linear": "[S(0)]"}, False),
    ],
)
def test_groups(pool: Pool, pinned: dict[str, str], apart: bool) -> None:
    assert pool.run(2, beside_jobs.mixed, pinned, apart) == [1, 1]
