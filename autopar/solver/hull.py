"""Time against memory: the lower convex hull of (bytes, seconds) of all assignments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from autopar.solver.dual import Found, Point, best_within
from autopar.solver.elimination import eliminate
from autopar.solver.network import Prices
from autopar.solver.prepared import PreparedProblem, refuse_too_large
from autopar.solver.problem import Assignment, Limit, Problem
from autopar.solver.rows import Goal
from autopar.utils.progress import Watch, unwatched

DEAR = 1e3
"""Where as many bytes as the fastest point has cost so many times its ticks, few are left to save."""


def hull(problem: Problem, watch: Watch = unwatched) -> tuple[Assignment, ...]:
    """From the fastest to the smallest assignment; the bound of each is of all within its bytes.

    Each is optimal within its own bytes, where nothing hides; otherwise the best that was found.
    """
    ready = PreparedProblem.of(problem)
    corners = watch(_Hull(ready).corners(), None, "looking for corners")
    answers = [ready.answer(point, bound, "hull") for point, bound in corners]
    kept: list[Assignment] = []
    for answer in sorted(answers, key=lambda one: (one.seconds, one.nbytes)):
        if not kept or answer.nbytes < kept[-1].nbytes:
            kept.append(answer)
    return tuple(kept)


def corners(ready: PreparedProblem, most: int, in_flight: float) -> tuple[Assignment, ...]:
    """A few corners, from the fastest to one of the smallest, with so many microbatches in flight.

    The others are found between those that lie farthest apart.
    """
    return tuple(ready.answer(point, 0.0, "none") for point in _Hull(ready, in_flight).some(most))


class _Hull:
    """Bytes are counted with `in_flight` microbatches."""

    def __init__(self, ready: PreparedProblem, in_flight: float = 1.0) -> None:
        self._order, self._network = ready.order, ready.left.network
        self._in_flight = in_flight
        self._goal = Goal.of(self._network)

    def corners(self) -> Iterator[tuple[Point, float]]:
        """Points, and lower bounds on the ticks of all that have no more bytes."""
        (fast, bound), (small, least) = self._ends()
        yield fast, bound
        yield from self._between(fast, small)
        yield small, least

    def some(self, most: int) -> list[Point]:
        """At most so many corners, from the fastest to the smallest."""
        fast = self._at(0.0)[0]
        dear = DEAR * self._ticks(fast) / max(1.0, self._nbytes(fast))
        found = [fast, self._at(dear)[0]]
        closed: set[int] = set()
        while len(found) < most:
            gaps = [
                (self._nbytes(a) - self._nbytes(b), i)
                for i, (a, b) in enumerate(itertools.pairwise(found))
                if id(a) not in closed
            ]
            widest, place = max(gaps, default=(0.0, 0))
            if widest <= 0:
                break
            corner = self._corner(found[place], found[place + 1])
            if corner is None:
                closed.add(id(found[place]))
            else:
                found.insert(place + 1, corner[0])
        return found if self._nbytes(found[0]) > self._nbytes(found[-1]) else found[:1]

    def _ends(self) -> tuple[tuple[Point, float], tuple[Point, float]]:
        """The fastest and the smallest, each with a bound on ticks of all with no more bytes."""
        fast, bound = self._at(0.0)
        nbytes: Prices = (0.0, 1.0, self._in_flight, 0.0)
        limit = Limit(eliminate(self._order, nbytes).bound, self._in_flight)
        smallest = best_within(self._order, Goal.of(self._network, (limit,)))
        return (fast, bound), (_point(smallest), smallest.bound)

    def _between(self, fast: Point, small: Point) -> Iterator[tuple[Point, float]]:
        """Corners strictly between two points (dichotomic search; Cohon 1978)."""
        found = self._corner(fast, small)
        if found is not None:
            yield from self._between(fast, found[0])
            yield found
            yield from self._between(found[0], small)

    def _corner(self, fast: Point, small: Point) -> tuple[Point, float] | None:
        """One strictly between two points; None where there is none."""
        saved = self._nbytes(fast) - self._nbytes(small)
        lost = self._ticks(small) - self._ticks(fast)
        if saved <= 0 or lost <= 0:
            return None
        price = lost / saved
        corner, bound = self._at(price)
        line = self._ticks(fast) + price * self._nbytes(fast)
        if self._ticks(corner) + price * self._nbytes(corner) >= line - len(self._network.tables):
            return None
        return corner, bound - price * self._nbytes(corner)

    def _at(self, price: float) -> tuple[Point, float]:
        """The best point where a byte costs so many ticks, and a bound on ticks and priced bytes."""
        prices: Prices = (1.0, price, self._in_flight * price, 0.0)
        found = best_within(self._order, Goal(self._goal.rows, prices))
        return _point(found), found.bound

    def _ticks(self, point: Point) -> float:
        return self._goal.soft(point.sums)

    def _nbytes(self, point: Point) -> float:
        return float(point.sums[1] + self._in_flight * point.sums[2])


def _point(found: Found) -> Point:
    return found.best or refuse_too_large()
