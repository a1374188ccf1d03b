"""The largest batch that a mesh can train: doubled until it does not fit, then found by halves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autopar.sharding.landscape import Point

MOST = 2**20
"""Samples: no larger batch is tried."""
NEAR = 8
"""The answer is this part of it away from a batch that does not fit, at most."""


def largest(at: Callable[[int], Point], first: int) -> Iterator[Point]:
    """Batches as they are tried; the largest one with a plan is the answer.

    `first` is tried first.  Where it fits it divides all others: the devices among which a batch is
    split, say.  No batch is tried twice.
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
