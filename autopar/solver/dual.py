"""The highest lower bound that multipliers give, and the best assignment met on the way.

Each elimination at multipliers m gives a value of the concave function g (see `rows`) and an assignment,
whose sums are a linear function of m that is nowhere below g.  A linear program over those functions
says where g may be highest; there the next elimination is made (cutting planes; Kelley 1960.  Seen from
the other side, columns are generated for the convex hull of all assignments; Dantzig and Wolfe 1960).

The last program's solution is a mixture of a few assignments, of which none may fit.  What lies between
them is found by exchanging pieces (`crossover`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.errors import OverLimitError
from autopar.solver.crossover import improved
from autopar.solver.elimination import Elimination, eliminate
from autopar.solver.gap_tolerance import THOROUGH
from autopar.solver.network import Prices
from autopar.solver.order import Order
from autopar.solver.problem import Array
from autopar.solver.program import highest
from autopar.solver.rows import Goal, Row

MOST_STEPS = 60
PARTS = float(2**30)
"""Several limits are compared in so many parts of the largest; a single one is counted in bytes."""
MOST_MIXED = 4
"""Assignments of which mixtures are tried."""
LITTLE = 1e-5
"""Bytes, or such parts, that are rounding."""


@dataclass(frozen=True, eq=False)
class Point:
    """An assignment and its sums."""

    states: tuple[int, ...]
    sums: Array


@dataclass(frozen=True, eq=False)
class Found:
    """The best assignment (None: none fits), the highest bound, and the elimination that gave it."""

    best: Point | None
    cost: float
    bound: float
    multipliers: tuple[float, ...]
    elimination: Elimination
    points: tuple[Point, ...]
    """All assignments that were met."""
    eliminations: int = 0
    """How many it took."""

    @property
    def gap(self) -> float:
        """Relative to the cost."""
        difference = self.cost - self.bound
        if self.cost == 0.0:
            return math.inf if difference > 0.0 else 0.0
        return difference / abs(self.cost)


def best_within(
    order: Order,
    goal: Goal,
    start: tuple[float, ...] | None = None,
    cutoff: float = math.inf,
) -> Found:
    """Multipliers, mixtures and all; `OverLimitError` where limits cannot be met.

    With `start`, from these multipliers.  A bound above `cutoff` need not be raised further.
    """
    search = _Search(order, goal, cutoff)
    search.at(start or (0.0,) * len(goal.rows))
    softest = tuple(0.0 if row.is_limit else row.dearest for row in goal.rows)
    if start is None and any(softest) and not search.is_done(0.0):
        search.at(softest)
    if not search.is_done(0.0):
        search.fit()
        search.climb()
    return search.found


class _Search:
    def __init__(self, order: Order, goal: Goal, cutoff: float) -> None:
        self._order, self._goal = order, goal
        self._slack = float(len(order.network.tables))
        self._points: dict[tuple[int, ...], Point] = {}
        self._cutoff = cutoff
        self._best: Point | None = None
        self._cost, self._bound = math.inf, -math.inf
        self._at: tuple[tuple[float, ...], Elimination] | None = None
        self._eliminations = 0

    @property
    def found(self) -> Found:
        """What is known by now."""
        assert self._at is not None
        bound = min(self._bound, self._cost)
        points = tuple(self._points.values())
        return Found(self._best, self._cost, bound, *self._at, points, self._eliminations)

    def is_done(self, close: float) -> bool:
        """Whether the gap is closed, up to this share of the cost."""
        cost = min(self._cost, self._cutoff)
        return cost - self._bound <= max(self._slack, close * abs(cost))

    def at(self, multipliers: tuple[float, ...]) -> bool:
        """Eliminate at these multipliers; whether that showed an assignment that was not known."""
        found = self._eliminated(self._goal.priced(multipliers))
        bound = found.bound - self._goal.allowance(multipliers)
        if self._at is None or bound > self._bound:
            self._bound, self._at = bound, (multipliers, found)
        return self._see(found.states)

    def _eliminated(self, prices: Prices) -> Elimination:
        self._eliminations += 1
        return eliminate(self._order, prices)

    def _see(self, states: tuple[int, ...]) -> bool:
        point = Point(states, self._order.network.sums(states))
        if states in self._points or not np.isfinite(point.sums[0]):
            return False
        self._points[states] = point
        self._keep(point)
        return True

    def _keep(self, point: Point) -> None:
        if (cost := self._goal.cost(point.sums)) < self._cost:
            self._best, self._cost = point, cost

    def fit(self) -> None:
        """Show enough assignments that a mixture of them keeps all limits, where one can."""
        limits = [row for row in self._goal.rows if row.is_limit]
        if not limits or any(self._goal.over(p.sums) == 0 for p in self._points.values()):
            return
        largest = max(max(abs(row.at_most), 1.0) for row in limits)
        unit = 1.0 if len(limits) == 1 else largest / PARTS
        shares, least = [1.0 / len(limits)] * len(limits), -math.inf
        for _ in range(MOST_STEPS):
            found = self._eliminated(_of_limits(limits, [share / unit for share in shares]))
            allowed = sum(s * row.at_most / unit for s, row in zip(shares, limits, strict=True))
            least = max(least, found.bound - allowed)
            if not self._see(found.states) or len(limits) == 1:
                break
            excess = [[row.excess(p.sums) / unit for row in limits] for p in self._points.values()]
            top = highest([0.0] * len(excess), excess, [1.0] * len(limits), simplex=True)
            if top is None or top[0] <= max(0.0, least) + LITTLE:
                break
            shares = top[1]
        if least > LITTLE:
            raise _over(limits, least * unit)

    def climb(self) -> None:
        """To the highest g, or until the gap is small."""
        for _ in range(MOST_STEPS):
            points = list(self._points.values())
            if not points:
                return
            top = self._highest(points)
            if top is None or top[0] <= self._bound + self._slack or not self.at(top[1]):
                break
            if self.is_done(THOROUGH.close):
                return
        self._mix()

    def _highest(self, points: Sequence[Point]) -> tuple[float, tuple[float, ...]] | None:
        """Where the least of the known functions is highest, and how high."""
        costs = [float(np.dot(self._goal.prices, p.sums)) for p in points]
        excess = np.array([[row.excess(p.sums) for row in self._goal.rows] for p in points])
        unit = max(1.0, *map(abs, costs))
        units = np.maximum(1.0, np.abs(excess).max(axis=0))
        dearest = [row.dearest * u / unit for row, u in zip(self._goal.rows, units, strict=True)]
        found = highest([c / unit for c in costs], (excess / units).tolist(), dearest)
        if found is None:
            return None
        multipliers = zip(found[1], units.tolist(), strict=True)
        return found[0] * unit, tuple(m * unit / u for m, u in multipliers)

    def _mix(self) -> None:
        assert self._at is not None
        prices = np.array(self._goal.priced(self._at[0]))
        near = sorted(self._points.values(), key=lambda p: float(np.dot(prices, p.sums)))
        near = near[: min(2 + len(self._goal.rows), MOST_MIXED)]
        for first in near:
            ends = [point.states for point in near if point is not first]
            states, sums = improved(self._order.network, first.states, ends, self._goal, prices)
            self._keep(Point(states, sums))


def _of_limits(limits: Sequence[Row], weights: Sequence[float]) -> Prices:
    """Prices at which only limited bytes count, each limit with its weight."""
    total = sum(w * np.array(row.weights) for row, w in zip(limits, weights, strict=True))
    return 0.0, *np.asarray(total).tolist()


def _over(limits: Sequence[Row], excess: float) -> OverLimitError:
    """The error that no assignment exceeds all limits by less than so many bytes."""
    largest = max(row.at_most for row in limits)
    needed = readable(largest + excess, up=True)
    if len(limits) == 1:
        words = f"No assignment fits {readable(largest)}: the smallest needs {needed}."
    else:
        given = " and ".join(dict.fromkeys(readable(row.at_most) for row in limits))
        more = readable(excess, up=True)
        words = f"No assignment fits {given} at once: one of these limits must rise by {more}."
    return OverLimitError(words, largest + excess)


def readable(nbytes: float, up: bool = False) -> str:
    """Bytes in the largest unit that fits, to three digits; `up`: never less than they are."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            value = nbytes / size
            if up:
                digits = 10.0 ** (2 - math.floor(math.log10(value)))
                value = math.ceil(value * digits) / digits
            return f"{value:.4g} {unit}"
    return f"{math.ceil(nbytes)} bytes"
