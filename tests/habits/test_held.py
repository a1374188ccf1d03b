"""What attributes of the model hold may change between steps, as in one process."""

from __future__ import annotations

from typing import Any

import pytest

import autopar
from tests.daily import daily
from tests.habits import held_jobs
from tests.pool import Pool

LAYOUTS: dict[str, dict[str, Any]] = {
    "ddp": {"preset": "ddp"},
    "fsdp": {"preset": "fsdp"},
    "megatron": {"preset": "megatron", "planning": autopar.Planning(allow_undivided=True)},
    "stages": {"pipeline": autopar.Pipeline(2, microbatches=1)},
}
CHANGES, PARTS = list(held_jobs.CHANGES), 6
CASES = [(part, how) for part in range(PARTS) for how in LAYOUTS]
SOME = [(0, "fsdp"), (1, "stages")]


@pytest.mark.parametrize(("part", "how"), daily(CASES, SOME))
def test_changes_are_followed(pool: Pool, part: int, how: str) -> None:
    """`tests/capture/test_held_values.py` has all changes without ranks."""
    pool.run(2, held_jobs.follows, CHANGES[part::PARTS], LAYOUTS[how])


@pytest.mark.slow
@pytest.mark.parametrize("how", daily(["fsdp", "stages"], ["fsdp"]))
def test_functions_of_classes_are_followed(pool: Pool, how: str) -> None:
    pool.run(2, held_jobs.patched, LAYOUTS[how])


@pytest.mark.parametrize("how", daily(["ddp", "stages"], ["ddp"]))
def test_a_value_of_one_rank_alone(pool: Pool, how: str) -> None:
    pool.run(2, held_jobs.ranks_differ, LAYOUTS[how])


@pytest.mark.slow
def test_a_tensor_that_varies_is_warned_of(pool: Pool) -> None:
    pool.run(2, held_jobs.warned)
