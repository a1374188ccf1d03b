"""Times single calls in rows of calls, while all ranks make the same calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
import torch.distributed as dist

from cost_models.calibrate.effort import Effort

SIDE = 128
"""Size of matrices that fit into a cache: their product needs a core, but no memory bandwidth."""
ROUNDS = 6
"""Number of rounds in which all ranks compute; in at least one, other programs should be idle."""
MOST_CALLS = 100
"""Maximum number of calls per row."""
Action = Callable[[], object]


def sustained_seconds(
    actions: Mapping[int, Action], effort: Effort, of_rows: Literal["fastest", "median"] = "fastest"
) -> dict[int, float]:
    """Return the seconds of one call of each action, from several rows of calls; equal on all ranks.

    A row lasts from the first rank's start to the last rank's end, by the host's clock: if ranks
    outnumber cores, a rank's own duration would not include the time until it is scheduled.  For
    compute the fastest row counts, as only other programs slow a row down; for collectives the median,
    as the ranks' relative timing is random.

    All ranks start a row together, and a row is long enough to show contention for cores.  The rows of
    different actions alternate, so that a disturbance affects one row of each action instead of all
    rows of one.
    """
    calls = {key: _calls_in_a_row(action, effort.row_s) for key, action in actions.items()}
    rows = torch.zeros(effort.rounds, len(actions), dtype=torch.float64)
    for row in rows:
        for column, (key, action) in enumerate(actions.items()):
            if of_rows == "median":
                time.sleep(effort.pause_s)
            dist.barrier()
            row[column] = _common_seconds(action, calls[key]) / calls[key]
    seconds = rows.amin(0) if of_rows == "fastest" else rows.median(0).values
    return dict(zip(actions, seconds.tolist(), strict=True))


def computing_seconds(
    actions: Mapping[int, Action], effort: Effort, crowd: float
) -> dict[int, float]:
    """Return the same for compute without communication; a CPU second takes `crowd` seconds.

    The fastest row falls between preemptions of a few milliseconds, and would not show them.  So on CPUs
    rows are measured in CPU time and multiplied by `crowd`.
    """
    if effort.device != "cpu":
        return sustained_seconds(actions, effort)
    calls = {key: _calls_in_a_row(action, effort.row_s) for key, action in actions.items()}
    rows = torch.zeros(effort.rounds, len(actions), dtype=torch.float64)
    for row in rows:
        for column, (key, action) in enumerate(actions.items()):
            dist.barrier()
            row[column] = _core_seconds(action, calls[key]) / calls[key]
    dist.all_reduce(rows, op=dist.ReduceOp.MAX)
    return dict(zip(actions, (crowd * rows.amin(0)).tolist(), strict=True))


def crowd_of(effort: Effort) -> float:
    """Return the wall time per second of CPU time, while all ranks compute.

    It exceeds 1 if ranks outnumber cores, or if a container's CPU time is limited.  The result is the
    mean over ranks in the quietest of several rounds; all ranks of the default group must call it.
    """
    if effort.device != "cpu":
        return 1.0
    matrix = torch.randn(SIDE, SIDE)
    rounds = torch.tensor([_lasting(matrix, effort.crowd_s) for _ in range(ROUNDS)])
    dist.all_reduce(rounds)
    return max(1.0, rounds.min().item() / dist.get_world_size())


def _lasting(matrix: torch.Tensor, crowd_s: float) -> float:
    dist.barrier()
    start, core_start = time.perf_counter(), time.thread_time()
    while (passed_s := time.perf_counter() - start) < crowd_s:
        torch.matmul(matrix, matrix)
    return passed_s / (time.thread_time() - core_start)


def _core_seconds(action: Action, calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        action()
    return time.thread_time() - start


def _common_seconds(action: Action, calls: int) -> float:
    """Return the seconds of a row on all ranks, on the host that takes longest; equal on all ranks.

    Clocks of different hosts are not comparable; ``torchrun`` numbers hosts by ``GROUP_RANK``.
    """
    start = time.monotonic()
    _row_seconds(action, calls)
    host = float(os.environ.get("GROUP_RANK", 0))
    mine = torch.tensor([host, start, time.monotonic()], dtype=torch.float64)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return longest(tuple(found.tolist()) for found in every)


def longest(rows: Iterable[tuple[float, ...]]) -> float:
    """Return the longest time from a host's first start to its last end, from (host, start, end)."""
    spans: dict[float, tuple[float, float]] = {}
    for host, start, end in rows:
        first, last = spans.get(host, (start, end))
        spans[host] = (min(first, start), max(last, end))
    return max(last - first for first, last in spans.values())


def _calls_in_a_row(action: Action, row_s: float) -> int:
    """Return the calls that fit into `row_s`; equal on all ranks, as collectives need all of them."""
    action()
    slowest_s = torch.tensor(_row_seconds(action, 1), dtype=torch.float64)
    dist.all_reduce(slowest_s, op=dist.ReduceOp.MAX)
    return min(MOST_CALLS, max(1, int(row_s / max(slowest_s.item(), 1e-9))))


def _row_seconds(action: Action, calls: int) -> float:
    _settle()
    start = time.perf_counter()
    for _ in range(calls):
        action()
    _settle()
    return time.perf_counter() - start


def _settle() -> None:
    """Wait for the accelerator's queue to finish."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
