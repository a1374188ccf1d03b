"""What is computed again in the backward reads buffers as the forward found them."""

from __future__ import annotations

import pytest
import torch

from autopar.capture import capture
from autopar.ir.blocks import blocks, no_blocks
from tests.distributed import state_jobs as jobs
from tests.pool import Pool


@pytest.mark.thorough
@pytest.mark.parametrize("kind", jobs.KINDS)
@pytest.mark.parametrize("recompute", ["full", pytest.param("selective", marks=pytest.mark.slow)])
def test_gradients_of_recomputed_models_with_state(pool: Pool, kind: str, recompute: str) -> None:
    assert max(pool.run(2, jobs.trained, kind, "fsdp", recompute)) < 1e-9


@pytest.mark.parametrize("kind", jobs.KINDS)
def test_what_reads_changed_state_is_no_block(kind: str) -> None:
    graph = capture(jobs.Stack(kind), {"x": torch.randn(4, 4)})
    said = dict(no_blocks(graph))
    again = [block.path for block in blocks(graph)]
    assert [f"plain.{i}" for i in range(3)] == [path for path in again if "plain" in path]
    if kind == "batch norm":
        assert "stateful.1" in again
    else:
        assert "which forward changes" in said["stateful.1"]
