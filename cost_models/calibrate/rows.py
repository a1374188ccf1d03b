"""Rows of calls: what one call takes while all ranks make the same ones."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
import torch.distributed as dist

from cost_models.calibrate.effort import Effort

SIDE = 128
"""Of matrices that lie in a cache: their product needs a core, and no memory."""
ROUNDS = 6
"""In which all ranks compute at once: in one of them at least, other programs should leave the cores to
them."""
MOST_CALLS = 100
"""Limit of calls in one row of them."""
Action = Callable[[], object]


def sustained_seconds(
    actions: Mapping[int, Action], effort: Effort, of_rows: Literal["fastest", "median"] = "fastest"
) -> dict[int, float]:
    """Seconds of one call of each action in a row of them, of several rows.

    A row lasts from the first rank's start to the last one's end, by the host's clock: where ranks
    outnumber cores, each by its own clock would not see the time that it waits to be started.
    What is computed takes the fastest row, as only other programs can slow a row down; collectives the
    median row, as luck is part of how ranks find each other.

    All ranks start a row together, and a row is long enough to feel that other ranks want the same
    cores.  The rows of different actions alternate, so that a busy moment of the machine spoils one
    row of each rather than every row of one.  Every rank returns the same.
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
    """The same of what is computed and waits for nobody, where each second of a core lasts `crowd`.

    A row is too short to feel a core that is taken away for milliseconds: the fastest one lies between.
    So on CPUs rows are counted in the core's own seconds.
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
    """How long each second of a core that this process computes for lasts, while all ranks compute.

    More than one where ranks outnumber cores, and where a container may not use a core all the time.
    The mean over ranks, in the quietest of some rounds; all of the default group call it.
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
    """A row of calls on all ranks at once, the same on all of them: of the host that takes longest.

    Clocks of different hosts have nothing in common; ``torchrun`` numbers hosts by ``GROUP_RANK``.
    """
    start = time.monotonic()
    _row_seconds(action, calls)
    host = float(os.environ.get("GROUP_RANK", 0))
    mine = torch.tensor([host, start, time.monotonic()], dtype=torch.float64)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return longest(tuple(found.tolist()) for found in every)


def longest(rows: Iterable[tuple[float, ...]]) -> float:
    """Of (host, start, end) by each host's clock: the most from a host's first start to its last end."""
    spans: dict[float, tuple[float, float]] = {}
    for host, start, end in rows:
        first, last = spans.get(host, (start, end))
        spans[host] = (min(first, start), max(last, end))
    return max(last - first for first, last in spans.values())


def _calls_in_a_row(action: Action, row_s: float) -> int:
    """As many as fit into `row_s`; the same on all ranks, which wait for each other in collectives."""
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
    """Wait for what was queued on an accelerator."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
