"""Parameters without elements: their gradients are empty where one process has such, and not None."""

from __future__ import annotations

import pytest

import autopar
from tests import parity
from tests.empties import empties
from tests.pool import Pool


@pytest.mark.parametrize("mesh", [(2,), (2, 2)])
def test_planning(mesh: tuple[int, ...]) -> None:
    model, inputs, _ = empties()
    for preset in ("ddp", "fsdp", "megatron", None):
        autopar.plan(model, mesh, inputs, preset=preset, hardware="cpu")
    autopar.plan(model, mesh, inputs, pipeline=2, hardware="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(2,), (2, 2)])
def test_steps(pool: Pool, mesh: tuple[int, ...]) -> None:
    presets = ("ddp", "fsdp", "megatron", None)
    works = [parity.preset_work("empties", mesh, preset) for preset in presets]
    works += [parity.random_work("empties", mesh, seed) for seed in range(4)]
    size = 1
    for ranks in mesh:
        size *= ranks
    pool.run(size, parity.check_all, works)
