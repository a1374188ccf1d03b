"""Trains some steps of one plan on every rank, and times them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from autopar.runtime.parallel import Parallel
from autopar.runtime.pipeline.module import Pipelined

WARM = 2
"""Steps before the first that is timed: they build optimizer state and buffers."""


def step_seconds(
    parallel: Parallel | Pipelined, batch: Any, optimizer: torch.optim.Optimizer, steps: int
) -> float:
    """Return the seconds of a step: the median of `steps` on the slowest rank, equal on all ranks."""
    step = _step(parallel, batch, optimizer)
    for _ in range(WARM):
        step()
    times = []
    for _ in range(steps):
        dist.barrier()
        _wait()
        began = time.perf_counter()
        step()
        _wait()
        times.append(time.perf_counter() - began)
    every: list[float] = [0.0] * dist.get_world_size()
    dist.all_gather_object(every, median(times))
    return max(every)


def freed() -> None:
    """Free what the last trial has left: the next one needs the memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _step(
    parallel: Parallel | Pipelined, batch: Any, optimizer: torch.optim.Optimizer
) -> Callable[[], None]:
    """Return forward, backward and update as the user trains them."""
    args = batch if isinstance(batch, tuple) else ()
    kwargs: Mapping[str, Any] = {} if isinstance(batch, tuple) else batch

    def step() -> None:
        if isinstance(parallel, Pipelined):
            parallel.train_step(**kwargs)
        else:
            Parallel._loss_of(parallel(*args, **kwargs)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _wait() -> None:
    """Wait for the device's queue, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
