"""Time against memory: the lower convex hull of (bytes, seconds) of all assignments."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.problem import Assignment, Limit, Problem
from autopar.solve.dual import Found, Point, best_within
from autopar.solve.elimination import eliminate
from autopar.solve.network import Prices
from autopar.solve.ready import Ready, refuse_too_large
from autopar.solve.rows import Goal

NBYTES: Prices = (0.0, 1.0, 1.0, 0.0)
"""Bytes with one microbatch in flight."""


def hull(problem: Problem) -> tuple[Assignment, ...]:
    """From the fastest to the smallest assignment; the bound of each is of all within its bytes.

    Each is optimal within its own bytes, where nothing hides; otherwise the best that was found.
    """
    ready = Ready.of(problem)
    answers = [ready.answer(point, bound, "hull") for point, bound in _Hull(ready).corners()]
    kept: list[Assignment] = []
    for answer in sorted(answers, key=lambda one: (one.seconds, one.nbytes)):
        if not kept or answer.nbytes < kept[-1].nbytes:
            kept.append(answer)
    return tuple(kept)


class _Hull:
    def __init__(self, ready: Ready) -> None:
        self._order, self._network = ready.order, ready.left.network
        self._goal = Goal.of(self._network)

    def corners(self) -> Iterator[tuple[Point, float]]:
        """Points, and lower bounds on the ticks of all that have no more bytes."""
        fast, bound = self._at(0.0)
        least = eliminate(self._order, NBYTES).bound
        limited = Goal.of(self._network, (Limit(least),))
        smallest = best_within(self._order, limited)
        small = _point(smallest)
        yield fast, bound
        yield from self._between(fast, small)
        yield small, smallest.bound

    def _between(self, fast: Point, small: Point) -> Iterator[tuple[Point, float]]:
        """Corners strictly between two points (dichotomic search; Cohon 1978)."""
        saved = _nbytes(fast) - _nbytes(small)
        lost = self._ticks(small) - self._ticks(fast)
        if saved <= 0 or lost <= 0:
            return
        price = lost / saved
        corner, bound = self._at(price)
        line = self._ticks(fast) + price * _nbytes(fast)
        if self._ticks(corner) + price * _nbytes(corner) >= line - len(self._network.tables):
            return
        yield from self._between(fast, corner)
        yield corner, bound - price * _nbytes(corner)
        yield from self._between(corner, small)

    def _at(self, price: float) -> tuple[Point, float]:
        """The best point where a byte costs so many ticks, and a bound on ticks and priced bytes."""
        prices: Prices = (1.0, price, price, 0.0)
        found = best_within(self._order, Goal(self._goal.rows, prices))
        return _point(found), found.bound

    def _ticks(self, point: Point) -> float:
        return self._goal.soft(point.sums)


def _point(found: Found) -> Point:
    return found.best or refuse_too_large()


def _nbytes(point: Point) -> float:
    return float(point.sums[1] + point.sums[2])
