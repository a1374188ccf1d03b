"""Optimizers that need whole gradients take the step of one process under every sharding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daily import rotated
from tests.distributed import optimizer_jobs as jobs
from tests.pool import Pool

FSDP: tuple[Any, ...] = (2, 2, {"preset": "fsdp"})
MEGATRON: tuple[Any, ...] = (2, 2, {"preset": "megatron"})
UNEVEN: tuple[Any, ...] = (2, 2, {"constraints": {"used:layers.1.weight": "[S(0)]"}})
WAYS: list[tuple[Any, ...]] = [
    FSDP, MEGATRON, (2, 2, {"preset": "ddp"}), (4, (2, 2), {"preset": "fsdp_megatron"}), UNEVEN,
]  # fmt: skip
STAGES: list[tuple[Any, ...]] = [(2, 2, {"pipeline": 2}), (4, (4,), {"pipeline": 2})]
SEPARATE = [name for name in jobs.OPTIMIZERS if name not in jobs.WHOLE_MODEL]


@pytest.mark.parametrize(
    ("name", "size", "mesh", "options"), rotated(jobs.OPTIMIZERS, WAYS, part=2)
)
def test_steps_are_those_of_one_process(
    pool: Pool, name: str, size: int, mesh: Any, options: dict[str, Any]
) -> None:
    sharded = pool.run(size, jobs.equal, name, mesh, options)
    assert all(count > 1 for count in sharded) or options.get("preset") == "ddp"


def test_one_of_the_ways_has_uneven_shards(pool: Pool) -> None:
    assert all(pool.run(2, jobs.uneven, *UNEVEN[1:]))


@pytest.mark.parametrize(("name", "size", "mesh", "options"), rotated(SEPARATE, STAGES, part=2))
def test_steps_of_stages_are_those_of_one_process(
    pool: Pool, name: str, size: int, mesh: Any, options: dict[str, Any]
) -> None:
    pool.run(size, jobs.equal, name, mesh, options)


@pytest.mark.parametrize("name", jobs.WHOLE_MODEL)
def test_stages_refuse_optimizers_of_the_whole_model(pool: Pool, name: str) -> None:
    for error in pool.run(2, jobs.coupled, name):
        assert "may need all parameters at once" in error and "AdamW" in error


@pytest.mark.parametrize(("name", "way", "other"), rotated(jobs.KEPT, [
    (FSDP, MEGATRON), (MEGATRON, STAGES[0]), (STAGES[0], FSDP),
], part=2))  # fmt: skip
def test_checkpoints_move_between_meshes(
    pool: Pool, tmp_path: Path, name: str, way: Any, other: Any
) -> None:
    ways = [each for each in (way, other) if name not in jobs.WHOLE_MODEL or each is not STAGES[0]]
    for job, (size, mesh, options) in zip((jobs.save, jobs.resume), (ways * 2)[:2], strict=True):
        pool.run(size, job, name, str(tmp_path), mesh, options)


@pytest.mark.parametrize("name", ["muon", "adafactor", "lamb", "shampoo", "normalised"])
def test_states_of_one_process_are_taken_as_they_are(pool: Pool, name: str) -> None:
    pool.run(2, jobs.whole_states, name, *FSDP[1:])


@pytest.mark.parametrize(
    ("name", "way"), rotated(["lbfgs", "normalised", "adafactor", "lars"], [(UNEVEN,), (FSDP,)])
)
def test_closures_see_the_weights_of_the_step(pool: Pool, name: str, way: Any) -> None:
    pool.run(2, jobs.closures, name, *way[1:])


def test_hooks_run_around_the_whole_step(pool: Pool) -> None:
    pool.run(2, jobs.hooks, *FSDP[1:])


def test_ranks_that_would_differ_are_refused(pool: Pool) -> None:
    pool.run(2, jobs.refused, *FSDP[1:])
