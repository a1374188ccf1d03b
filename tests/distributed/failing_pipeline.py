"""A pipeline in which one rank fails in mid-step: ``failing_pipeline.py raise|kill RANK``."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch

import autopar
from autopar.runtime.pipeline.stage import Stage
from tests import models

how, failing = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
model, batch, loss = models.mlp()
parallel = autopar.parallelize(
    model,
    int(os.environ["WORLD_SIZE"]),
    batch,
    loss=loss,
    pipeline=autopar.Pipeline(2, microbatches=4),
)
steps = 0
whole = Stage.backward


def breaks(stage: Stage, microbatch: int, *args: Any) -> Any:
    """The backward of the third step's second microbatch goes wrong on one rank."""
    if steps == 2 and microbatch == 1 and int(os.environ["RANK"]) == failing:
        if how == "raise":
            raise ValueError("broken on purpose")
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(stage, microbatch, *args)


Stage.backward = breaks  # type: ignore[method-assign]
while steps < 1000:
    parallel.train_step(**batch)
    parallel.zero_grad()
    steps += 1
