"""A training script in which one rank fails in mid-step, or leaves before the first one:
``failing.py raise|kill|leave RANK``."""

from __future__ import annotations

import os
import signal
import sys

import torch

import autopar
from tests import models

how, failing = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
model, batch, loss = models.mlp()
parallel = autopar.parallelize(model, int(os.environ["WORLD_SIZE"]), batch, loss=loss, preset="ddp")
if how == "leave" and int(os.environ["RANK"]) == failing:
    sys.exit(0)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
for step in range(1000):
    value = parallel(**batch)
    if step == 3 and int(os.environ["RANK"]) == failing:
        if how == "raise":
            raise ValueError("broken on purpose")
        os.kill(os.getpid(), signal.SIGKILL)
    value.backward()
    optimizer.step()
    optimizer.zero_grad()
