"""How ranks wait for each other: none is as fast as the others all the time, and all must meet.

Ranks compute for a while and meet in a small all-reduce, again and again.  Beyond what each computes
and what the all-reduce takes in a row of them, a turn takes ``late_s + behind * computed``: the first
is there however short a turn is (threads that wake up, caches that are cold, moments in which a core
does something else), the second is of cores that stay slower than others for long.  Two lengths of a
turn give both.  Among many ranks the last comes later than among two, of which the figure speaks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from cost_models.collectives import lateness

TURNS_S = (0.008, 0.1)
"""What a rank computes in a turn: between two operators that are split, and in a good part of a step."""
ROW_S = 0.2
"""Turns of one length follow each other for so long."""
SIDE = 512
"""Of the matrices that ranks multiply: with what they write they leave nothing else in a cache."""


@dataclass(frozen=True)
class Waiting:
    """Seconds of a turn beyond its compute and its collective, as a line in the compute.

    `late_s` is of two ranks.
    """

    behind: float
    late_s: float

    @classmethod
    def through(cls, short: tuple[float, float], long: tuple[float, float], ranks: int) -> Waiting:
        """By two (seconds of compute, seconds of waiting) of so many ranks; neither is below zero."""
        (short_s, short_wait_s), (long_s, long_wait_s) = short, long
        behind = max(0.0, (long_wait_s - short_wait_s) / (long_s - short_s))
        return cls(behind, max(0.0, short_wait_s - behind * short_s) / lateness(ranks))


NO_WAITING = Waiting(0.0, 0.0)
"""Of a rank alone."""


@dataclass(frozen=True)
class Turn:
    """Seconds of one of a row of turns, the mean over ranks: the median of what a core computes, and of
    how long that lasts; the mean of all in all."""

    core_s: float
    own_s: float
    whole_s: float


def waiting(rows: int) -> Waiting:
    """Every rank of the default group calls it, and gets the same; the median over so many rows."""
    matrix, wide = torch.randn(SIDE, SIDE), torch.rand(SIDE * SIDE)
    message = torch.zeros(16)

    def compute(units: int) -> None:
        for _ in range(units):
            torch.matmul(matrix, matrix)
            torch.mul(wide, wide)

    def meet() -> None:
        dist.all_reduce(message)

    unit_s = _row(partial(compute, 10), meet, 4).core_s / 10
    meeting_s: list[float] = []
    short: list[Turn] = []
    long: list[Turn] = []
    for _ in range(rows):
        meeting_s.append(_row(lambda: None, meet, 20).whole_s)
        for found, turn_s in zip((short, long), TURNS_S, strict=True):
            units = max(1, round(turn_s / unit_s))
            found.append(_row(partial(compute, units), meet, round(ROW_S / turn_s)))
    crowd = statistics.median(turn.own_s / turn.core_s for turn in long)
    alone_s = statistics.median(meeting_s)
    world = dist.get_world_size()
    return Waiting.through(_of(short, crowd, alone_s), _of(long, crowd, alone_s), world)


def _of(turns: list[Turn], crowd: float, meeting_s: float) -> tuple[float, float]:
    """Compute and waiting of a turn.  Where ranks share cores, each second of a core's lasts longer.

    What is computed counts as operators are timed, by the median.
    """
    core_s = crowd * statistics.median(turn.core_s for turn in turns)
    return core_s, statistics.median(turn.whole_s for turn in turns) - core_s - meeting_s


def _row(compute: Callable[[], None], meet: Callable[[], None], turns: int) -> Turn:
    dist.barrier()
    core_s, own_s = [], []
    start = time.perf_counter()
    for _ in range(turns):
        before, core_before = time.perf_counter(), time.thread_time()
        compute()
        core_s.append(time.thread_time() - core_before)
        own_s.append(time.perf_counter() - before)
        meet()
    whole_s = (time.perf_counter() - start) / turns
    found = torch.tensor(
        [statistics.median(core_s), statistics.median(own_s), whole_s], dtype=torch.float64
    )
    dist.all_reduce(found)
    return Turn(*(found / dist.get_world_size()).tolist())
