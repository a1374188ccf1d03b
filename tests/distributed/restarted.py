"""A script that fails in its first attempt, on one rank, and writes each attempt's seed: ``restarted.py
FOLDER HOW``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import autopar
from tests import models

folder, how = Path(sys.argv[1]), sys.argv[2]
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.set_num_threads(1)
model, batch, loss = models.mlp()
torch.manual_seed(1000 * attempt + rank)
parallel = autopar.parallelize(model, 2, batch, loss=loss, preset="ddp")
seed = parallel.seeds.state.double().sum().item()
for step in range(4):
    parallel(**batch).backward()
    parallel.zero_grad()
    if step == 2 and attempt == 0 and rank == 1:
        if how == "raise":
            raise ValueError("broken on purpose")
        os.kill(os.getpid(), signal.SIGKILL)
(folder / f"{attempt}_{rank}").write_text(repr(seed))
dist.destroy_process_group()
