"""Modules of `torch.nn` between linear layers, on two ranks, under layouts that split them."""

from __future__ import annotations

import pytest

from tests import parity
from tests.daily import daily
from tests.distributed.test_parity import run
from tests.nn_modules import MODULES
from tests.pool import Pool

PLACES = (((2,), "ddp"), ((2,), "fsdp"))
ON_A_CPU = [name for name in MODULES if name != "nn.SyncBatchNorm"]
"""One process runs it on a GPU alone."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", daily(ON_A_CPU, ("nn.CTCLoss", "nn.Bilinear")))
def test_on_two_ranks(pool: Pool, name: str) -> None:
    run(pool, [parity.preset_work(name, shape, preset) for shape, preset in PLACES])
