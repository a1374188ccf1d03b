"""Checkpoints of several ranks: they go on as if nothing had ended, and fail on all ranks alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.files import jobs
from tests.pool import Pool

WAYS: tuple[tuple[Any, str | None, int], ...] = (
    (2, "fsdp", 1), (2, "ddp", 1), (2, "megatron", 1), (2, None, 2), (1, "fsdp", 1)
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("mesh", "preset", "stages"), WAYS)
def test_a_run_goes_on(
    pool: Pool, tmp_path: Path, mesh: int, preset: str | None, stages: int
) -> None:
    before = pool.run(mesh, jobs.begin, str(tmp_path), mesh, preset, stages)
    after = pool.run(mesh, jobs.resume, str(tmp_path), mesh, preset, stages)
    for all_of_it, rest in zip(before, after, strict=True):
        assert rest == pytest.approx(all_of_it[2:], abs=1e-12), "losses and Python's random numbers"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mesh", "preset"),
    [pytest.param(4, "fsdp", marks=pytest.mark.slow), ((2, 2), "fsdp_megatron")],
)
def test_on_other_ranks(pool: Pool, tmp_path: Path, mesh: Any, preset: str) -> None:
    before = pool.run(2, jobs.begin, str(tmp_path), 2, "megatron")
    for rest in pool.run(4, jobs.resume, str(tmp_path), mesh, preset):
        assert rest[:2] == pytest.approx(before[0][2:4], abs=1e-9)
    for said in pool.run(4, jobs.position_of_others, str(tmp_path), mesh, preset):
        assert "each with its own extra['rank']" in said


def test_a_rank_that_fails(pool: Pool, tmp_path: Path) -> None:
    for said in pool.run(2, jobs.one_rank_fails, str(tmp_path), 2, "fsdp"):
        assert len(said) == 2
        assert "existing checkpoint there is unchanged" in said[0] and "No space left" in said[0]
        assert "nothing was changed" in said[1]
