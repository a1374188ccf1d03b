"""float16 with loss scaling: ranks find overflows together, and skip what one process skips."""

from __future__ import annotations

import pytest

from tests.daily import daily
from tests.distributed import jobs
from tests.pool import Pool


@pytest.mark.parametrize("precision", daily(["float16", "autocast"], ["float16"]))
@pytest.mark.parametrize(
    ("preset", "clips", "optimizer"),
    [("fsdp", False, "sgd"), ("megatron", True, "fused"), ("zero2", True, "sgd"),
     (None, False, "fused")],
)  # fmt: skip
def test_scales_and_skipped_steps(
    pool: Pool, precision: str, preset: str | None, clips: bool, optimizer: str
) -> None:
    found = pool.run(2, jobs.scaled_steps, (2,), preset, precision, clips, optimizer)
    assert found[0] == found[1]
    exponents = [14, 14, 4, 4, -6, -6, -6, -5]
    assert found[0] == [2.0**e for e in exponents], "three steps skipped, then three that grow"


@pytest.mark.parametrize("microbatches", [1, 2])
def test_mean_losses_do_not_overflow(pool: Pool, microbatches: int) -> None:
    pool.run(2, jobs.float16_means, (2,), microbatches)
