"""Long-lived workers, forked from one process that has imported torch and transformers.

`Pool.run(size, function, *args)` runs ``function(*args)`` in `size` processes with an initialised
default group, and returns what each rank returned.  A rank that raises ends the job with its
traceback; the workers are then replaced, because their groups may be in any state.

Groups are gloo's, or those of `tests.strict`: everywhere, with ``AUTOPAR_TEST_BACKEND=strict``.
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
    """Processes that stay alive between tests; a set of them per number of ranks."""

    def __init__(self, backend: str | None = None, **environment: str) -> None:
        self._environment = environment
        self._backend = backend or os.environ.get("AUTOPAR_TEST_BACKEND", "gloo")
        self._workers: dict[int, list[tuple[Any, Connection]]] = {}

    def run(
        self, size: int, function: Callable[..., Any], *args: Any, limit_s: float = LIMIT_S
    ) -> list[Any]:
        """The results of all ranks, in order."""
        if size not in self._workers:
            self._start(size)
        pipes = [pipe for _, pipe in self._workers[size]]
        try:
            for rank, pipe in enumerate(pipes):
                _send(pipe, rank, (function, args))
            return self._collect(pipes, limit_s)
        except BaseException:
            self._stop(size)
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

    def _start(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.parity"])
        store = (
            Path(tempfile.mkdtemp(prefix="pool_", dir=os.environ.get("AUTOPAR_CACHE"))) / "store"
        )
        self._workers[size] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            arguments = (theirs, rank, size, str(store), self._backend, self._environment)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._workers[size].append((process, ours))

    def _stop(self, size: int) -> None:
        for process, pipe in self._workers.pop(size):
            pipe.close()
            process.kill()
            process.join()

    def stop(self) -> None:
        """End all workers."""
        for size in list(self._workers):
            self._stop(size)


def _send(pipe: Connection, rank: int, work: tuple[Callable[..., Any], tuple[Any, ...]]) -> None:
    try:
        pipe.send(work)
    except BrokenPipeError:
        raise WorkerError(f"rank {rank} died after the test before this one") from None


def _work(
    pipe: Connection, rank: int, size: int, store: str, backend: str, environment: dict[str, str]
) -> None:
    """Initialise the default group and run jobs until the pipe closes."""
    os.environ.update(
        OMP_NUM_THREADS="1",
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        **environment,
    )
    import torch
    import torch.distributed as dist

    from tests import strict

    strict.register()
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit
    )
    while True:
        try:
            function, args = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send((True, function(*args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
            return
