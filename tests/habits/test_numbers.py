"""Numbers that follow the size of the batch are those of the whole batch, in every part of it."""

from __future__ import annotations

import pytest

from tests.daily import rotated
from tests.habits import number_jobs
from tests.pool import Pool


@pytest.mark.parametrize(("name", "ranks"), rotated(number_jobs.LOSSES, [2, 1], part=2))
def test_parts_are_of_the_whole(pool: Pool, ranks: int, name: str) -> None:
    """In a step of parts, and in a pipeline of two stages."""
    for found in pool.run(ranks, number_jobs.differences, name):
        assert [text.split(":")[0] for text in found.values()] == [
            "refused" if name in number_jobs.REFUSED else "equal"
        ] * 2, found
