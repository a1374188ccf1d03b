"""The memory of steps in bfloat16, with parameters, gradients and their sums in float32."""

from __future__ import annotations

import math

import pytest

from tests.daily import daily
from tests.distributed import precision_jobs as jobs
from tests.pool import Pool

CASES = [
    ("ddp", (2,)), ("zero2", (2,)), ("fsdp", (2,)), ("megatron", (2,)), ("ddp", (4,)),
    ("zero2", (4,)), ("fsdp", (4,)), ("hsdp", (2, 2)), ("fsdp_megatron", (2, 2)),
    ("zero2_megatron", (2, 2)),
]  # fmt: skip


LOW = "bfloat16/bfloat16"
EVERY = [
    *((preset, shape, "bfloat16") for preset, shape in CASES),
    ("ddp", (2,), LOW), ("zero2", (2,), LOW), ("fsdp", (2,), LOW), ("zero2_megatron", (2, 2), LOW),
]  # fmt: skip
EVERYDAY = [(preset, (2,), "bfloat16") for preset in ("ddp", "zero2", "fsdp")] + [
    ("ddp", (2,), LOW)
]


@pytest.mark.thorough
@pytest.mark.parametrize(("preset", "shape", "precision"), daily(EVERY, EVERYDAY))
def test_a_step_needs_what_the_plan_says(
    pool: Pool, preset: str, shape: tuple[int, ...], precision: str
) -> None:
    predicted, found = pool.run(math.prod(shape), jobs.memory, preset, shape, precision)[0]
    assert predicted == pytest.approx(found.most, rel=0.01)
