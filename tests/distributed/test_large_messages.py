"""Gradients of a block that are too large to be copied into one message are summed where they are."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autopar.runtime import _torch, kernels
from tests import parity
from tests.pool import Pool


def in_place(works: list[parity.Work]) -> int:
    """Check plans as if every gradient were large; how often some were summed where they are."""
    summed = 0
    reduce_scatter_many = _torch.reduce_scatter_many

    def counted(*given: Any) -> None:
        nonlocal summed
        summed += 1
        reduce_scatter_many(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "NBYTES", 0)
        patch.setattr(_torch, "reduce_scatter_many", counted)
        parity.check_all(works)
    return summed


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(2,), pytest.param((2, 2), marks=pytest.mark.slow)])
def test_steps_are_those_of_one_process(pool: Pool, shape: tuple[int, ...]) -> None:
    works = [parity.preset_work(name, shape, "fsdp") for name in ("llama", "heavy.pairs")]
    every = pool.run(math.prod(shape), in_place, works)
    assert all(summed >= len(works) * parity.STEPS for summed in every)
