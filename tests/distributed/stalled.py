"""One rank of a test: rank 0 does something with gradients that rank 1 leaves out."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

import autopar
from tests.habits.loop_jobs import Net


def main(how: str, preset: str) -> None:
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    x = torch.randn(8, 8)
    parallel: Any = autopar.parallelize(Net(), 2, {"x": x}, preset=preset)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    parallel(x=x).backward()
    loss = parallel(x=x)
    if how == "slow":  # far longer than the limit: no difference, so no error
        time.sleep(9.0 if rank == 0 else 0.0)
        loss.backward()
    elif how == "clip":
        loss.backward()
        if rank == 0:
            parallel.clip_grad_norm_(1.0)
    elif rank == 0:
        loss.backward()
    optimizer.step()
    parallel(x=x).backward()
    print("done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
