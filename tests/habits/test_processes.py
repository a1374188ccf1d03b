"""Habits of people who start processes: parts of a world, notebooks, long runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daily import daily
from tests.distributed import growth_jobs
from tests.distributed.by_hand import LIMIT_S, environment
from tests.pool import Pool

NOTEBOOK = """
import autopar
from tests import models

model, batch, loss = models.mlp()
parallel = autopar.parallelize(model, 1, batch, loss=loss)
parallel(**batch).backward()
"""


@pytest.mark.parametrize("preset", ["ddp", "fsdp"])
def test_meetings_leave_nothing(pool: Pool, preset: str) -> None:
    for before, behind in pool.run(2, growth_jobs.growth_of_steps, preset, 10):
        assert behind == before


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["ddp", "fsdp"])
def test_a_thousand_steps_leave_nothing(pool: Pool, preset: str) -> None:
    for before, behind in pool.run(2, growth_jobs.growth_of_steps, preset, 500):
        assert behind == before


@pytest.mark.thorough
@pytest.mark.parametrize("preset", daily(["ddp", "fsdp", "megatron"], ["fsdp"]))
def test_modules_that_are_dropped_go(pool: Pool, preset: str) -> None:
    assert pool.run(2, growth_jobs.kept_of_calls, preset, 4) == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "stages"), [((2, 2), 1), ((4,), 2)])
def test_models_on_one_mesh_share_its_groups(
    pool: Pool, shape: tuple[int, ...], stages: int
) -> None:
    """Each group has threads that wake up a hundred times a second."""
    for found in pool.run(4, growth_jobs.groups_of_calls, shape, stages, 3):
        assert found[1:] == found[:-1]


def test_a_part_of_the_world_is_refused(pool: Pool) -> None:
    for message in pool.run(4, growth_jobs.part_of_the_world):
        assert "The mesh has 2 of the 4 processes of this launch" in message


@pytest.mark.thorough
def test_one_process_needs_no_launcher(tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text(NOTEBOOK)
    done = subprocess.run(
        [sys.executable, str(script)], env=environment(), capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
