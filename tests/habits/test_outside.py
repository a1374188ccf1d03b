"""What forward and the loss read outside of the model may change between steps, as in one process."""

from __future__ import annotations

from typing import Any

import pytest

import autopar
from tests.daily import daily
from tests.habits import outside_jobs
from tests.pool import Pool

LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"preset": "ddp"},
    "fsdp": {"preset": "fsdp"},
    "megatron": {"preset": "megatron", "planning": autopar.Planning(allow_undivided=True)},
    "stages": {"pipeline": 2},
}
CASES = [(kind, how) for kind in outside_jobs.KINDS for how in LAYOUTS]
SOME = [*[case for case in CASES if case[1] == "fsdp"][::2], ("by_threshold", "stages")]


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "how"), daily(CASES, SOME))
def test_changes_are_followed(pool: Pool, kind: str, how: str) -> None:
    pool.run(2, outside_jobs.follows, kind, 2, LAYOUTS[how])


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_what_is_not_computed_with_costs_no_program(pool: Pool, how: str) -> None:
    pool.run(2, outside_jobs.unused, 2, LAYOUTS[how])


@pytest.mark.slow
def test_a_number_that_varies_is_warned_of(pool: Pool) -> None:
    pool.run(2, outside_jobs.warned, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("how", daily(["ddp", "stages"], ["ddp"]))
def test_what_one_rank_alone_sets_is_told(pool: Pool, how: str) -> None:
    pool.run(2, outside_jobs.ranks_differ, 2, LAYOUTS[how])
