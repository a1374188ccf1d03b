"""Long-lived gloo workers: importing torch and transformers costs seconds, so it is done once.

`Pool.run(size, function, *args)` runs ``function(*args)`` in `size` processes with an initialised
default group, and returns what each rank returned.  A rank that raises ends the job with its
traceback; the workers are then replaced, because their groups may be in any state.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

LIMIT_S = 100.0


class WorkerError(AssertionError):
    """A rank raised; the message is its traceback."""


class Pool:
    """Processes that stay alive between tests."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._workers: list[tuple[Any, Connection]] = []
        self._jobs = 0

    def run(self, size: int, function: Callable[..., Any], *args: Any, limit_s: float = LIMIT_S) -> list[Any]:
        """The results of all ranks, in order."""
        if not self._workers:
            self._start()
        self._jobs += 1
        store = Path(tempfile.mkdtemp(prefix="autopar_pool_")) / "store"
        chosen = self._workers[:size]
        for rank, (_, pipe) in enumerate(chosen):
            pipe.send((rank, size, str(store), function, args))
        try:
            return self._collect([pipe for _, pipe in chosen], limit_s)
        except BaseException:
            self.stop()
            raise

    def _collect(self, pipes: list[Connection], limit_s: float) -> list[Any]:
        results: dict[int, Any] = {}
        end = time.monotonic() + limit_s
        while len(results) < len(pipes):
            waiting = [pipe for i, pipe in enumerate(pipes) if i not in results]
            ready = wait(waiting, timeout=max(0.0, end - time.monotonic()))
            if not ready:
                missing = [i for i in range(len(pipes)) if i not in results]
                raise WorkerError(f"ranks {missing} gave no answer within {limit_s} s")
            for pipe in ready:
                rank = pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    ok, value = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    raise WorkerError(f"rank {rank} died") from None
                if not ok:
                    raise WorkerError(f"rank {rank} raised:\n{value}")
                results[rank] = value
        return [results[rank] for rank in range(len(pipes))]

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        for _ in range(self._size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def stop(self) -> None:
        """End all workers."""
        for process, pipe in self._workers:
            pipe.close()
            process.kill()
            process.join()
        self._workers = []


def _work(pipe: Connection) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    while True:
        try:
            rank, size, store, function, args = pipe.recv()
        except (EOFError, OSError):
            return
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=60),
            )
            pipe.send((True, function(*args)))
            dist.destroy_process_group()
        except BaseException:
            pipe.send((False, traceback.format_exc()))
            return
