"""Measures how long ranks wait for each other, as they never run at exactly the same speed.

Ranks alternate between compute and a small all-reduce.  A turn takes ``late_s + behind * computed`` more
than its compute and the all-reduce alone.  `late_s` does not depend on the length of a turn: threads
wake up, caches are cold, cores are interrupted.  `behind` is due to cores that are slower than others
for a long time.  Turns of two lengths give both.  With more ranks the last one is later; `late_s` is
for two.
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
"""Compute per turn: as between two tensor-parallel operators, and as in a good part of a step."""
ROW_S = 0.2
"""Duration of a row of turns of one length."""
SIDE = 512
"""Size of the matrices that ranks multiply; with the results they evict everything else from caches."""


@dataclass(frozen=True)
class Waiting:
    """The waiting time in a turn, linear in its compute: ``late_s + behind * computed``.

    `late_s` is for two ranks.
    """

    behind: float
    late_s: float

    @classmethod
    def through(cls, short: tuple[float, float], long: tuple[float, float], ranks: int) -> Waiting:
        """Fit a line through two points (compute seconds, waiting seconds) of `ranks` ranks.

        Neither coefficient is negative.
        """
        (short_s, short_wait_s), (long_s, long_wait_s) = short, long
        behind = max(0.0, (long_wait_s - short_wait_s) / (long_s - short_s))
        return cls(behind, max(0.0, short_wait_s - behind * short_s) / lateness(ranks))


NO_WAITING = Waiting(0.0, 0.0)
"""The waiting of a single rank."""


@dataclass(frozen=True)
class Turn:
    """Seconds of a turn, averaged over ranks.

    `core_s` is the median CPU time of the compute, `own_s` its median wall time, and `whole_s` the mean
    duration of a turn.
    """

    core_s: float
    own_s: float
    whole_s: float


def waiting(rows: int) -> Waiting:
    """Measure the waiting, as the median over `rows` rows.

    Every rank of the default group must call it, and gets the same result.
    """
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
    """Return the compute and waiting seconds of a turn.

    CPU time is multiplied by `crowd`, the wall time per second of CPU time.  The compute is the median,
    as operators are timed.
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
