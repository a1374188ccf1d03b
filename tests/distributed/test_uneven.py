"""Padded sizes: a step equals the single process, whatever is split, at rest and in the step."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests import parity
from tests.daily import daily
from tests.distributed import uneven_jobs as jobs
from tests.distributed.test_parity import run
from tests.pool import Pool

PADDED = {
    "uneven_gpt2": {
        (2,): {257: 258, 5: 6},
        (4,): {257: 260, 5: 8, 6: 8},
        (2, 2): {257: 258, 5: 6, 6: 8},
    },
    "uneven_llama": {
        (2,): {131: 132, 3: 4},
        (4,): {131: 132, 6: 8},
        (2, 2): {131: 132, 3: 4, 6: 8},
    },
    "uneven_five": {(2,): {5: 6}, (4,): {5: 8}, (2, 2): {5: 6}},
    "uneven_regression": {
        (2,): {27: 28, 7: 8},
        (4,): {27: 28, 7: 8, 6: 8},
        (2, 2): {27: 28, 7: 8, 6: 8},
    },
    "uneven_adapters": {(2,): {257: 258, 5: 6}, (4,): {257: 260, 6: 8}},
    "uneven_half_frozen": {(2,): {257: 258, 5: 6}},
}
"""By model and mesh: what the sizes become."""
EVERYDAY, MORE = 2, 3
"""Plans by model and mesh, every day and in the slow run; `benchmarks/parity.py` has more."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PADDED)
def test_random_plans(pool: Pool, name: str) -> None:
    """Loss, gradients, weights, sizes at rest and traffic under a few random plans."""
    run(
        pool,
        [
            parity.padded_work(name, shape, to, seed=seed)
            for shape, to in PADDED[name].items()
            for seed in range(EVERYDAY)
        ],
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", PADDED)
def test_gradients_add_up(pool: Pool, name: str) -> None:
    """Over backwards, under plans whose gradients lie padded in their buckets."""
    for shape, to in PADDED[name].items():
        for seed in range(1, 1 + EVERYDAY):
            work = parity.padded_work(name, shape, to, seed=seed)
            pool.run(math.prod(shape), jobs.adding_up, work)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PADDED)
def test_many_random_plans(pool: Pool, name: str) -> None:
    """The same under many."""
    for shape, to in PADDED[name].items():
        run(pool, [parity.padded_work(name, shape, to, seed=100 + seed) for seed in range(MORE)])


@pytest.mark.parametrize(
    ("name", "mesh", "force", "norm_type", "padded"),
    [
        pytest.param("uneven_gpt2", (4,), "vocabulary", 2.0, "257 -> 260", marks=pytest.mark.slow),
        ("uneven_gpt2", (2,), "heads", 2.0, "5 -> 6"),
        pytest.param("uneven_gpt2", (4,), "batch", 2.0, "6 -> 8", marks=pytest.mark.slow),
        pytest.param("uneven_five", (4,), "vocabulary", 2.0, "5 -> 8", marks=pytest.mark.slow),
        ("uneven_five", (4,), "vocabulary", float("inf"), "5 -> 8"),
    ],
)
def test_training(
    pool: Pool, name: str, mesh: tuple[int, ...], force: str, norm_type: float, padded: str
) -> None:
    """AdamW with weight decay and clipping by the public calls, where padding cannot be avoided."""
    for said in pool.run(mesh[0], jobs.training, name, mesh, force, norm_type):
        assert padded in said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uneven_gpt2", "uneven_five"])
def test_checkpoints_move(pool: Pool, tmp_path: Path, name: str) -> None:
    """From a padded plan to one without padding, and back, and into the plain model."""
    stages = (((4,), "vocabulary"), ((2, 2), None), ((4,), "vocabulary"))
    pool.run(4, jobs.moved, str(tmp_path), name, stages)


@pytest.mark.slow
def test_checkpoints_of_heads_move(pool: Pool, tmp_path: Path) -> None:
    """The same where shards at rest are exchanged on their way into the step."""
    pool.run(2, jobs.moved, str(tmp_path), "uneven_gpt2", (((2,), "heads"), ((2,), None)))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "force"),
    daily(
        [("uneven_five", "vocabulary"), ("uneven_gpt2", "heads")], [("uneven_five", "vocabulary")]
    ),
)
def test_plain_weights(pool: Pool, tmp_path: Path, name: str, force: str) -> None:
    pool.run(4, jobs.plain_weights, str(tmp_path), name, (4,), force)


@pytest.mark.slow
@pytest.mark.parametrize("force", ["vocabulary", "heads"])
def test_other_batches(pool: Pool, force: str) -> None:
    pool.run(2, jobs.other_batches, (2,), force)
