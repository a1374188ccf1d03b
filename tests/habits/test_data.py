"""Weights written through ``.data`` between forwards count, also where leaves are gathered."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daily import daily
from tests.habits import data_jobs, stale_jobs
from tests.pool import Pool

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "ddp": (2, {"preset": "ddp"}),
    "zero2": (2, {"preset": "zero2"}),
    "fsdp": (2, {"preset": "fsdp"}),
    "megatron": (2, {"preset": "megatron"}),
    "fsdp_megatron": (4, {"preset": "fsdp_megatron"}),
    "ddp_megatron": (4, {"mesh": (2, 2), "preset": "ddp+megatron"}),
}
CASES = [(way, layout) for way in data_jobs.WAYS for layout in LAYOUTS]
SOME = [("data", "zero2"), ("data", "megatron"), ("view", "zero2"), ("foreach", "zero2")]


@pytest.mark.parametrize(("way", "layout"), daily(CASES, SOME))
def test_a_write_that_torch_does_not_count_is_noticed(pool: Pool, way: str, layout: str) -> None:
    ranks, options = LAYOUTS[layout]
    pool.run(ranks, data_jobs.written, way, ranks, options)


@pytest.mark.parametrize("layout", ["zero2", "megatron"])
def test_gathering_again_fails_no_backward_to_come(pool: Pool, layout: str) -> None:
    pool.run(2, stale_jobs.read_between, LAYOUTS[layout][1])


@pytest.mark.parametrize("layout", ["zero2", "megatron"])
@pytest.mark.parametrize("how", ["step", "write"])
def test_an_update_before_a_backward_is_still_told(pool: Pool, how: str, layout: str) -> None:
    pool.run(2, stale_jobs.updated_between, how, LAYOUTS[layout][1])


def test_stages_step_with_weights_put_back(pool: Pool) -> None:
    pool.run(2, data_jobs.evaluated_between_stages)
