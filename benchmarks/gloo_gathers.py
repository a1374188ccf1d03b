"""Shows that gloo's coalesced all-gather corrupts the heap, and that one gather of all bytes does not.

python benchmarks/gloo_gathers.py                    # a minute for each of both, on two processes
python benchmarks/gloo_gathers.py --seconds 300

Three gathers of three tensors are on their way at any time, without autopar.  Coalesced ones end the
process with "malloc(): unaligned tcache chunk detected" or a segmentation fault, or stop, at a random
time (torch 2.13).  So `autopar.runtime.gathers` gathers bytes on gloo.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist

RANKS, TENSORS, FLYING = 2, 3, 3
EVERY = 500
"""Calls between two looks at the clock."""


def start(way: str, call: int) -> tuple[dist.Work, object]:
    """Start to gather three tensors; return the work and what has to live until it is done."""
    group = dist.group.WORLD
    parts = [torch.full((1,), float(call), dtype=torch.float64) for _ in range(TENSORS)]
    if way == "bytes":
        sent = torch.cat([part.view(torch.uint8) for part in parts])
        come = sent.new_empty(RANKS * sent.numel())
        return dist.all_gather_into_tensor(come, sent, async_op=True), (come, sent)
    made = [part.new_empty(RANKS) for part in parts]
    return group.allgather_into_tensor_coalesced(made, parts), (made, parts)


def gather(way: str, seconds: float, rank: int, store: str) -> None:
    """Gather for so long; print how often."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=30)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=limit
    )
    end, calls, flying = time.monotonic() + seconds, 0, list[tuple[dist.Work, object]]()
    over = torch.zeros(1)
    while not over.item():
        for calls in range(calls + 1, calls + 1 + EVERY):  # noqa: B020
            flying.append(start(way, calls))
            if len(flying) == FLYING:
                flying.pop(0)[0].wait()
        over.fill_(float(time.monotonic() > end))
        dist.broadcast(over, 0)
    for work, _ in flying:
        work.wait()
    if rank == 0:
        print(f"{way}: {calls:,} gathers, no fault", flush=True)
    time.sleep(1)
    os._exit(0)  # gloo's threads abort an interpreter that ends


def main() -> None:
    """Gather in both ways."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args().seconds
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    for way in ("coalesced", "bytes"):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [
                context.Process(target=gather, args=(way, seconds, rank, f"{folder}/store"))
                for rank in range(RANKS)
            ]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
            codes = [process.exitcode for process in ranks]
        print(f"{way}: exit codes {codes}", flush=True)


if __name__ == "__main__":
    main()
