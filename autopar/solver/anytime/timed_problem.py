"""A problem whose bytes are in use for a time: a limit holds at every moment.

Choose one state per variable so that the sum of all costs and pair tables is least, and so that at
each time the bytes of the spans that cover it stay within the limit of that time.  A limit on a sum is
the special case of one time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.errors import PlanError

Array = NDArray[np.float64]
MOST = 1e17
"""Larger finite costs are refused: their sums could not be compared."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Costs of the states of two variables together; infinite ones forbid."""

    first: int
    second: int
    costs: Array


@dataclass(frozen=True, eq=False)
class Span:
    """Bytes by state of a variable, in use from the time `start` until before `stop`."""

    variable: int
    start: int
    stop: int
    nbytes: Array


@dataclass(frozen=True, eq=False)
class TimedProblem:
    """min sum of costs[i][x_i] + sum of pairs   subject to   bytes at t <= limits[t] for all t."""

    costs: tuple[Array, ...]
    pairs: tuple[Pair, ...]
    spans: tuple[Span, ...]
    limits: Array

    def check(self) -> None:
        """Raise `PlanError` unless shapes agree, costs are numbers or infinite, spans are in time."""
        for index, costs in enumerate(self.costs):
            if costs.ndim != 1 or len(costs) == 0:
                raise PlanError(f"Variable {index} needs a list of costs, one per state.")
            _check_costs(f"Variable {index}", costs)
        count = len(self.costs)
        for number, pair in enumerate(self.pairs):
            what = f"Pair {number} ({pair.first}, {pair.second})"
            if not (0 <= pair.first < count and 0 <= pair.second < count):
                raise PlanError(f"{what} refers to a variable that does not exist.")
            if pair.first == pair.second:
                raise PlanError(f"{what} names a variable twice.")
            shape = (len(self.costs[pair.first]), len(self.costs[pair.second]))
            if pair.costs.shape != shape:
                raise PlanError(f"{what} has a table {pair.costs.shape}, not {shape}.")
            _check_costs(what, pair.costs)
        if np.any(np.isnan(self.limits)):
            raise PlanError("A limit is not a number.")
        for number, span in enumerate(self.spans):
            what = f"Span {number} of variable {span.variable}"
            if not 0 <= span.variable < count:
                raise PlanError(f"{what}: the variable does not exist.")
            if not 0 <= span.start <= span.stop <= len(self.limits):
                raise PlanError(
                    f"{what} is from {span.start} to {span.stop}, not within 0 to {len(self.limits)}."
                )
            if span.nbytes.shape != self.costs[span.variable].shape:
                raise PlanError(f"{what} needs one number of bytes per state.")
            if not np.all(np.isfinite(span.nbytes) & (span.nbytes >= 0)):
                raise PlanError(f"{what} has bytes that are negative or not a number.")

    def cost(self, states: Sequence[int]) -> float:
        """The objective of an assignment; infinite if a forbidden state or pair is chosen."""
        own = sum(float(costs[s]) for costs, s in zip(self.costs, states, strict=True))
        return own + sum(float(p.costs[states[p.first], states[p.second]]) for p in self.pairs)

    def nbytes(self, states: Sequence[int]) -> Array:
        """The bytes in use at each time."""
        steps = np.zeros(len(self.limits) + 1)
        for span in self.spans:
            held = span.nbytes[states[span.variable]]
            steps[span.start] += held
            steps[span.stop] -= held
        course: Array = np.cumsum(steps)[:-1]
        return course

    def fits(self, states: Sequence[int]) -> bool:
        """Whether an assignment is within the limits at all times."""
        return bool(np.all(self.nbytes(states) <= self.limits))


def _check_costs(what: str, costs: Array) -> None:
    if np.any(np.isnan(costs)) or np.any(np.isneginf(costs)):
        raise PlanError(f"{what} has a cost that is not a number.")
    if np.any(np.isfinite(costs) & (np.abs(costs) > MOST)):
        raise PlanError(f"{what} has a cost beyond {MOST:g}.")
