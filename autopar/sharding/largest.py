"""Finds the largest batch that a mesh can train: doubles it until it does not fit, then bisects."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autopar.sharding.landscape import Point

MOST = 2**20
"""The largest batch that is tried, in samples."""
NEAR = 8
"""Bisection ends when a batch that does not fit is larger than the answer by 1 / `NEAR` at most."""


def largest(at: Callable[[int], Point], first: int) -> Iterator[Point]:
    """Yield the batches as they are tried; the largest one with a plan is the answer.

    `first` is tried first, such as the number of devices that a batch is split over.  If it fits, all
    other batches are multiples of it.  No batch is tried twice.
    """
    fits, unit = 0, first
    batch = first
    while batch <= MOST:
        point = at(batch)
        yield point
        if point.made is None:
            break
        fits, batch = batch, 2 * batch
    else:
        return
    fails = batch
    while not fits and fails > 1:
        unit = 1
        point = at(fails // 2)
        yield point
        if point.made is None:
            fails //= 2
        else:
            fits = fails // 2
    while fits and fails - fits > max(unit, fits // NEAR):
        middle = (fits + fails) // (2 * unit) * unit
        point = at(middle)
        yield point
        fits, fails = (fits, middle) if point.made is None else (middle, fails)
