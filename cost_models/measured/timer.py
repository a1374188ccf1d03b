"""Robust timing of actions: warm-up, alternating rows of calls, median and spread.

The rows of different actions alternate, so that a disturbance of the machine affects one row of each
action instead of all rows of one.  With a default process group all its ranks time the same actions at
the same time, because ranks that share a host's cores slow each other down, as they do in a step.

A single-threaded rank on a CPU is timed by its CPU seconds, which exclude other programs; if ranks
outnumber cores, these are multiplied by the ranks per core.  Otherwise a row lasts from the first
rank's start to the last rank's end.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from cost_models.measured.here import cores
from cost_models.measured.values import Pass

Key = TypeVar("Key")
Action = Callable[[], object]
MOST_CALLS = 2000


@dataclass(frozen=True, slots=True)
class Effort:
    """Number of rows per action, of about `row_s` each; slow actions have fewer, but at least three."""

    rows: int = 9
    row_s: float = 0.004
    most_s: float = 4.0


def rows_of(actions: Mapping[Key, Action], effort: Effort, device: str) -> dict[Key, list[float]]:
    """Return the seconds per call of each action, by row; warm-up calls are not counted."""
    calls = {key: _calls_in_a_row(action, effort.row_s, device) for key, action in actions.items()}
    found: dict[Key, list[float]] = {key: [] for key in actions}
    for _ in range(effort.rows):
        for key, action in actions.items():
            spent_s = sum(found[key]) * calls[key]
            if len(found[key]) < 3 or spent_s < effort.most_s:
                found[key].append(_row_seconds(action, calls[key], device) / calls[key])
    return found


def median_of(rows: list[float], calls: int = 1) -> Pass:
    """Return median and spread of rows of actions that make `calls` calls each."""
    middle = statistics.median(rows)
    if len(rows) < 2:
        return Pass(middle / calls, 0.0)
    low, _, high = statistics.quantiles(rows, n=4, method="inclusive")
    return Pass(middle / calls, (high - low) / 2 / middle)


def _calls_in_a_row(action: Action, row_s: float, device: str) -> int:
    """Return the number of calls that fit into a row, equal on all ranks, after two warm-up calls."""
    action()
    action()
    took_s = _row_seconds(action, 1, device)
    return min(MOST_CALLS, max(1, round(row_s / max(took_s, 1e-9))))


def _row_seconds(action: Action, calls: int, device: str) -> float:
    """Return the seconds of a row, equal on all ranks."""
    together = dist.is_initialized()
    if together:
        dist.barrier()
    if device == "cpu" and torch.get_num_threads() == 1:
        return _row_cpu_seconds(action, calls)
    _synchronise(device)
    start = time.monotonic() if together else time.perf_counter()
    for _ in range(calls):
        action()
    _synchronise(device)
    if not together:
        return time.perf_counter() - start
    ends = torch.tensor([-start, time.monotonic()], dtype=torch.float64)
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    return float(ends.sum())


def _row_cpu_seconds(action: Action, calls: int) -> float:
    """Return the ranks' mean CPU seconds, times the number of ranks per core."""
    start = time.process_time()
    for _ in range(calls):
        action()
    spent = torch.tensor(time.process_time() - start, dtype=torch.float64)
    if not dist.is_initialized():
        return float(spent)
    dist.all_reduce(spent)
    return float(spent) / min(dist.get_world_size(), max(1, cores()))


def _synchronise(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
