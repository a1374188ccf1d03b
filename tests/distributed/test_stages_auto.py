"""Stages that autopar chooses, on real processes: the step equals that of one process."""

from __future__ import annotations

import pytest

from tests.pipeline.build.hosts import slow_hosts
from tests.pipelines import Line, check_lines
from tests.pool import Pool

ALONE = slow_hosts(1e6, per_host=1)
"""Hosts of one device each."""


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [None, "zb-h1", "zb-v"])
def test_chosen_stages_are_equal(pool: Pool, schedule: str | None) -> None:
    """Between hosts little can be sent, so that stages are the best that there is, the tied weight's
    copies included."""
    slow = slow_hosts(1e6)
    line = Line("gpt2", (4,), "auto", schedule, None, least_workers=2, hardware=slow)
    pool.run(4, check_lines, [line])


def test_chosen_interleaved_stages_are_equal(pool: Pool) -> None:
    """Two workers hold at least four stages, with a tied embedding in the first and the last."""
    line = Line("gpt2", (2,), "auto", "interleaved", 4, least_workers=2, hardware=ALONE)
    pool.run(2, check_lines, [line])


@pytest.mark.slow
def test_chosen_interleaved_stages_of_two_ranks_are_equal(pool: Pool) -> None:
    """On four ranks, of which two are a host."""
    line = Line(
        "gpt2", (4,), "auto", "interleaved", None, least_workers=2, hardware=slow_hosts(1e6)
    )
    pool.run(4, check_lines, [line])


@pytest.mark.slow
def test_one_stage_that_accumulates(pool: Pool) -> None:
    """Within one host with a fast link, microbatches are asked for."""
    line = Line("gpt2", (2,), "auto", "gpipe", 4, hardware=slow_hosts(1e12, 0.0))
    pool.run(2, check_lines, [line])
