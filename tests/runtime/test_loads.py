"""Loads of state dicts that differ between ranks are refused on all of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pool import Pool
from tests.runtime.load_jobs import loaded

LAYOUTS = ({"preset": "ddp"}, {"preset": "fsdp"}, {"pipeline": 2})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_with_other_values(pool: Pool, layout: dict[str, Any]) -> None:
    for said, kept in pool.run(2, loaded, layout):
        assert len(said) == 4
        for each in said:
            assert "disagree about the values to load" in each
            assert "torch.distributed.broadcast" in each
        assert kept == [2.0]
