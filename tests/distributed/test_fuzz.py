"""Random models (tests/fuzz) train on ranks as alone, under the solver's plan and random ones."""

from __future__ import annotations

import pytest

from tests import parity
from tests.distributed.test_parity import run
from tests.pool import Pool

EVERY_DAY = range(2)
SLOW, AT_ONCE = range(2, 32), 10
"""So many models are one test of the slow run; `benchmarks/parity.py` has those up to 302."""
PRESETS = ("ddp", "zero2", "fsdp", "megatron", "megatron_sp", "fsdp_megatron")


def works(seed: int) -> list[parity.Work]:
    """The solver's plan, a preset's and random ones of one model; every other one on four ranks."""
    name, four = f"fuzz.{seed}", ((2, 2), (4,))[seed // 2 % 2]
    made = [parity.preset_work(name, (2,), None), parity.random_work(name, (2,), 2 * seed)]
    if seed % 2:
        made += [parity.preset_work(name, four, None), parity.random_work(name, four, seed)]
    else:
        made += [
            parity.preset_work(name, (2,), PRESETS[seed // 2 % len(PRESETS)]),
            parity.random_work(name, (2,), 2 * seed + 1),
        ]
    return made


@pytest.mark.parametrize("seed", EVERY_DAY)
def test_a_random_model(pool: Pool, seed: int) -> None:
    run(pool, works(seed))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", SLOW[::AT_ONCE])
def test_many_random_models(pool: Pool, first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        run(pool, works(seed))
        parity.reference.cache_clear()
        pool.run(2, parity.forget)
