"""Runs a job in several local gloo processes at the same time, and collects the result."""

from __future__ import annotations

import datetime
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from cost_models.errors import CostModelError

LIMIT_S = 120.0
T = TypeVar("T")


def run(count: int, job: Callable[[], T], limit_s: float = LIMIT_S) -> T:
    """Run `job()` in `count` processes and return the result of the first that ends.

    Each process has the default group and one PyTorch thread.  The job must be picklable, and all
    processes should return the same.  The first error kills all processes and raises `CostModelError`.
    """
    context = get_context("spawn")
    workers: dict[Any, Any] = {}
    with tempfile.TemporaryDirectory(prefix="autopar_calibrate_") as folder:
        store = str(Path(folder) / "store")
        try:
            for rank in range(count):
                mine, theirs = context.Pipe(duplex=False)
                workers[mine] = context.Process(
                    target=_worker, args=(rank, count, store, job, limit_s, theirs), daemon=True
                )
                workers[mine].start()
                theirs.close()  # so that the pipe ends when the process dies
            found: T = _collect(workers, limit_s)
            return found
        finally:
            for mine, worker in workers.items():
                mine.close()
                if worker.pid is not None:
                    worker.kill()
                    worker.join()


def _collect(workers: Mapping[Any, Any], limit_s: float) -> Any:
    """Wait for all ranks' results, which are equal, and return one."""
    found: list[Any] = []
    waiting = list(workers)
    end = time.monotonic() + limit_s
    while waiting:
        ready = connection.wait(waiting, max(0.0, end - time.monotonic()))
        if not ready:
            raise CostModelError(
                f"The job of {len(workers)} processes took longer than {limit_s:.0f} s; "
                "is the machine busy? Try again when it is idle."
            )
        for each in ready:
            found.append(_heard(each, workers))
            waiting.remove(each)
    return found[0]


def _heard(answers: Any, workers: Mapping[Any, Any]) -> Any:
    """Return a process's result; raise `CostModelError` if it failed or died."""
    try:
        answer = answers.recv()
    except (EOFError, OSError):
        workers[answers].join(LIMIT_S)
        raise CostModelError(
            f"Process {list(workers).index(answers)} of {len(workers)} died with exit code "
            f"{workers[answers].exitcode}; see its output above. A script that starts processes must "
            "do so under `if __name__ == '__main__':`."
        ) from None
    if isinstance(answer, str):
        raise CostModelError(f"A process failed: {answer}")
    return answer


def _worker(
    rank: int, count: int, store: str, job: Callable[[], Any], limit_s: float, answers: Any
) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    try:
        limit = datetime.timedelta(seconds=limit_s)
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=limit
        )
        answers.send(job())
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:
        answers.send(f"rank {rank}: {type(error).__name__}: {error}")


def _end_with_parent() -> None:
    """Exit when the parent dies: a killed parent cannot stop its children."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
