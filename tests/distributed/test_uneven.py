"""Padded sizes: a step equals the single process, whatever is split, at rest and in the step."""

from __future__ import annotations

import pytest

from tests import parity
from tests.distributed.test_parity import run
from tests.pool import Pool

PADDED = {
    "uneven_gpt2": {(2,): {257: 258, 5: 6}, (4,): {257: 260, 5: 8, 6: 8}, (2, 2): {257: 258, 5: 6, 6: 8}},
    "uneven_llama": {(2,): {131: 132, 3: 4}, (4,): {131: 132, 6: 8}, (2, 2): {131: 132, 3: 4, 6: 8}},
    "uneven_five": {(2,): {5: 6}, (4,): {5: 8}, (2, 2): {5: 6}},
    "uneven_regression": {(2,): {27: 28, 7: 8}, (4,): {27: 28, 7: 8, 6: 8}, (2, 2): {27: 28, 7: 8, 6: 8}},
}  # fmt: skip
"""By model and mesh: what the sizes become."""
EVERYDAY, ALL = 2, 60


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
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", PADDED)
def test_many_random_plans(pool: Pool, name: str) -> None:
    """The same under many."""
    for shape, to in PADDED[name].items():
        run(pool, [parity.padded_work(name, shape, to, seed=100 + seed) for seed in range(ALL)])
