"""Buffers that are read and changed in one forward have the values of one process in every step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daily import rotated
from tests.habits import frozen_jobs
from tests.habits.frozen_models import MODELS
from tests.pool import Pool

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, {}),
    "ddp": (2, {"preset": "ddp"}),
    "fsdp": (2, {"preset": "fsdp"}),
    "megatron": (2, {"preset": "megatron"}),
}


@pytest.mark.parametrize(("name", "layout"), rotated(MODELS, list(LAYOUTS)))
def test_steps_are_those_of_one_process(pool: Pool, name: str, layout: str) -> None:
    ranks, options = LAYOUTS[layout]
    if (name, layout) == ("spectral", "megatron"):
        pytest.skip("nothing of the power iteration has a factor that megatron splits")
    pool.run(ranks, frozen_jobs.steps, name, ranks, options)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", MODELS)
def test_on_four_ranks(pool: Pool, name: str, preset: str) -> None:
    pool.run(4, frozen_jobs.steps, name, 4, {"preset": preset})
