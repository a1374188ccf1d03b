"""An all-to-all without lists of tensors, which gloo takes since torch 2.13 only."""

from __future__ import annotations

import pytest
import torch
from torch.torch_version import TorchVersion

from tests.distributed import exchange_jobs
from tests.pool import Pool

pytestmark = pytest.mark.skipif(
    torch.__version__ < TorchVersion("2.13"), reason="gloo takes no lists: nothing to compare with"
)


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0), (2, 0), (0, 2)])
@pytest.mark.parametrize("ranks", [2, 3])
def test_it_moves_what_lists_move(pool: Pool, ranks: int, source: int, target: int) -> None:
    pool.run(ranks, exchange_jobs.exchanged, source, target)
