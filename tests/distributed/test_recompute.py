"""Recomputed blocks: the same numbers, the predicted traffic, less memory."""

from __future__ import annotations

import pytest

from autopar.blocks import Recompute
from tests import parity
from tests.distributed.test_parity import MESHES, run
from tests.pool import Pool


@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_every_block(pool: Pool, name: str, mode: Recompute) -> None:
    """The solver's plan and two presets in which all blocks do the same."""
    presets = (None, "fsdp", "megatron_sp")
    run(pool, [parity.preset_work(name, (2, 2), preset, mode) for preset in presets])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_random_plans_of_random_blocks(pool: Pool, name: str) -> None:
    run(pool, [parity.random_work(name, s, 3000 + i, True) for i in range(2) for s in MESHES])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shape", MESHES)
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_many_random_plans_of_random_blocks(pool: Pool, name: str, shape: tuple[int, ...]) -> None:
    run(pool, [parity.random_work(name, shape, 4000 + i, True) for i in range(50)])
