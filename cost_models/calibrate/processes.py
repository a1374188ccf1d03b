"""Local gloo processes that do the same job at the same time: started, heard, ended."""

from __future__ import annotations

import datetime
import queue
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from cost_models.errors import CostModelError

LIMIT_S = 120.0
T = TypeVar("T")


def run(count: int, job: Callable[[], T], limit_s: float = LIMIT_S) -> T:
    """What `job()` gives in `count` processes, of the first that ends; the first error ends all.

    The job must be picklable: each process has a default group, and one thread for PyTorch.
    """
    context = get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory(prefix="autopar_calibrate_") as folder:
        store = str(Path(folder) / "store")
        workers = [
            context.Process(
                target=_worker, args=(rank, count, store, job, limit_s, answers), daemon=True
            )
            for rank in range(count)
        ]
        try:
            for worker in workers:
                worker.start()
            found: T = _collect(answers, workers, limit_s)
            return found
        finally:
            for worker in workers:
                if worker.pid is not None:
                    worker.kill()
                    worker.join()


def _collect(answers: Any, workers: Sequence[Any], limit_s: float) -> Any:
    """Every rank's answer is the same, but all must have one."""
    found: list[Any] = []
    end = time.monotonic() + limit_s
    while len(found) < len(workers):
        if time.monotonic() > end:
            raise CostModelError(
                f"The job of {len(workers)} processes took longer than {limit_s:.0f} s; "
                "is the machine busy? Try again when it is idle."
            )
        try:
            answer = answers.get(timeout=0.5)
        except queue.Empty:
            _check_alive(workers)
            continue
        if isinstance(answer, str):
            raise CostModelError(f"A calibration process failed: {answer}")
        found.append(answer)
    return found[0]


def _check_alive(workers: Sequence[Any]) -> None:
    for rank, worker in enumerate(workers):
        if worker.exitcode not in (0, None):
            raise CostModelError(
                f"Calibration process {rank} of {len(workers)} died with exit code "
                f"{worker.exitcode}; see its output above. A script that calibrates must do so "
                "under `if __name__ == '__main__':`."
            )


def _worker(
    rank: int, count: int, store: str, job: Callable[[], Any], limit_s: float, answers: Any
) -> None:
    torch.set_num_threads(1)
    try:
        limit = datetime.timedelta(seconds=limit_s)
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=limit
        )
        answers.put(job())
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:
        answers.put(f"rank {rank}: {type(error).__name__}: {error}")
