"""A forward that takes gradients: the parallel step equals the single-process step."""

from __future__ import annotations

import pytest

from tests import parity
from tests.daily import daily
from tests.derivatives import DERIVATIVES
from tests.distributed.test_parity import run
from tests.pool import Pool

DAILY = ("derivatives.burgers", "derivatives.penalty")
PLACES = (((2,), "ddp"), ((2,), "fsdp"), ((2,), "megatron"))
WIDER = (((4,), "ddp"), ((2, 2), "fsdp_megatron"), ((2,), "zero2"), ((2,), None), ((1,), None))


@pytest.mark.parametrize("name", daily(DERIVATIVES, DAILY))
def test_on_two_ranks(pool: Pool, name: str) -> None:
    run(pool, [parity.preset_work(name, shape, preset) for shape, preset in PLACES])


@pytest.mark.slow
@pytest.mark.parametrize("name", DERIVATIVES)
def test_on_more_meshes(pool: Pool, name: str) -> None:
    run(pool, [parity.preset_work(name, shape, preset) for shape, preset in WIDER])


@pytest.mark.slow
@pytest.mark.parametrize("name", DERIVATIVES)
def test_random_plans(pool: Pool, name: str) -> None:
    run(pool, [parity.random_work(name, (2,), seed) for seed in range(6)])
