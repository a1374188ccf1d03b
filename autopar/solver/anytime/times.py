"""Keeps the times that matter: those at which the limit can be exceeded and no other time covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autopar.errors import InfeasibleError
from autopar.solver.anytime.tables import Index
from autopar.solver.anytime.timed_problem import Array, Span


def reduced_times(spans: Sequence[Span], limits: Array) -> tuple[list[Span], Array, Index]:
    """Return the spans over the times that matter, the limits on what a choice adds, and those times.

    The least bytes of each span are in use whatever is chosen: they are taken off the limits.  Raises
    `InfeasibleError` where they alone exceed one.
    """
    spans = [span for span in spans if span.stop > span.start]
    left = limits - _course(spans, [float(span.nbytes.min()) for span in spans], len(limits))
    short = np.flatnonzero(left < 0)
    if len(short):
        time = int(short[0])
        raise InfeasibleError(
            f"At time {time} the least that all variables need is {limits[time] - left[time]:.0f} "
            f"bytes, more than the limit of {limits[time]:.0f}. Raise the limit."
        )
    spans = [replace(span, nbytes=span.nbytes - span.nbytes.min()) for span in spans]
    most = _course(spans, [float(span.nbytes.max()) for span in spans], len(limits))
    spans = [span for span in spans if span.nbytes.max() > 0]
    kept = _uncovered(spans, np.flatnonzero(most > left), left)
    before = np.searchsorted(kept, np.arange(len(limits) + 1))
    moved = [
        replace(span, start=int(before[span.start]), stop=int(before[span.stop])) for span in spans
    ]
    times = np.array(kept, dtype=np.int64)
    return _joined([span for span in moved if span.stop > span.start]), left[times], times


def _course(spans: Sequence[Span], nbytes: Sequence[float], count: int) -> Array:
    steps = np.zeros(count + 1)
    np.add.at(steps, _places([span.start for span in spans]), nbytes)
    np.add.at(steps, _places([span.stop for span in spans]), -np.array(nbytes))
    course: Array = np.cumsum(steps)[:-1]
    return course


def _places(values: Sequence[int]) -> Index:
    return np.array(values, dtype=np.int64)


def _uncovered(spans: Sequence[Span], times: Index, left: Array) -> list[int]:
    """Times whose spans are not all in use at another time, too, that has no higher limit."""
    starts = np.zeros(len(left) + 2, dtype=np.int64)
    stops = np.zeros(len(left) + 2, dtype=np.int64)
    np.add.at(starts, _places([span.start + 1 for span in spans]), 1)
    np.add.at(stops, _places([span.stop + 1 for span in spans]), 1)
    started, stopped = np.cumsum(starts), np.cumsum(stops)  # before each time
    kept: list[int] = []
    for time in map(int, times):
        covered = False
        while kept:
            last = kept[-1]
            none_stops = stopped[time + 1] == stopped[last + 1]
            none_starts = started[time + 1] == started[last + 1]
            if none_stops and left[time] <= left[last]:
                kept.pop()
                continue
            covered = bool(none_starts and left[last] <= left[time])
            break
        if not covered:
            kept.append(time)
    return kept


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Add up spans of one variable over the same times."""
    sums: dict[tuple[int, int, int], Array] = {}
    for span in spans:
        key = (span.variable, span.start, span.stop)
        sums[key] = sums[key] + span.nbytes if key in sums else span.nbytes
    return [Span(*key, nbytes) for key, nbytes in sums.items()]
