"""The best assignment within limits that hold at every time.

Most times do not matter, because others are fuller.  So limits are posed at a few times only.  An
answer that exceeds a limit at another time shows which ones to add (constraint generation; Dantzig,
Fulkerson and Johnson 1954).  Whatever is within the limits at all times is within those at some, so a
bound that was proved on the way holds.
"""

from __future__ import annotations

import numpy as np

from autopar.errors import InfeasibleError
from autopar.solver.dual import best_within
from autopar.solver.gap_tolerance import THOROUGH, GapTolerance
from autopar.solver.prepared import PreparedProblem
from autopar.solver.problem import Array, Assignment, Limit, Problem
from autopar.solver.rows import Goal

MOST_ROUNDS = 24
"""Answers that may exceed a limit at a time that was not posed, before the search is given up."""
MOST_NEW = 3
"""Times that one answer adds."""


class OverTime:
    """A problem within limits at every time; the times that were found to matter are kept."""

    def __init__(self, problem: Problem, in_flight: float = 0.0) -> None:
        """`in_flight` counts the other microbatches."""
        self.problem, self.in_flight = problem, in_flight
        self.times: list[int] = []

    def solve(self, at_most: Array, care: GapTolerance = THOROUGH) -> Assignment:
        """Return the best assignment with at most so many bytes at each time, [times].

        Raises `OverLimitError` where none is, and `InfeasibleError` where none was found.
        """
        self._settle(at_most)
        work = care.sooner
        for _ in range(MOST_ROUNDS):
            limits = self.limits(at_most)
            found = PreparedProblem.of(self.problem, limits).solve(limits, care=work)
            if self._add(found.states, at_most):
                continue
            if work == care or found.seconds - found.bound_s <= care.close * abs(found.seconds):
                return found
            work = care
        raise InfeasibleError(
            f"After {MOST_ROUNDS} rounds the answers still exceed the limit at other times. Raise it."
        )

    def bound_s(self, at_most: Array) -> float:
        """Return what no assignment within the limits undercuts, by multipliers alone.

        Raises `OverLimitError` where none is within them.
        """
        return self._settle(at_most)

    def _settle(self, at_most: Array) -> float:
        """Add times until the assignment at the best multipliers exceeds the limit at no other."""
        for _ in range(MOST_ROUNDS):
            limits = self.limits(at_most)
            ready = PreparedProblem.of(self.problem, limits)
            network = ready.left.network
            found = best_within(ready.order, Goal.of(network, limits))
            reached = found.elimination.states if found.best is None else found.best.states
            bound_s = found.bound * network.tick_s
            if not self._add(ready.left.whole(reached), at_most):
                break
        return bound_s

    def limits(self, at_most: Array) -> tuple[Limit, ...]:
        """Return the limits at the times that were found to matter."""
        return tuple(Limit(float(at_most[time]), self.in_flight, time) for time in self.times)

    def _add(self, states: tuple[int, ...], at_most: Array) -> bool:
        """Add the times at which an assignment exceeds the limit most; whether any is new."""
        excess = self.problem.course(states, self.in_flight) - at_most
        new = set(fullest(excess)) - set(self.times)
        self.times = sorted({*self.times, *new})
        return bool(new)


def fullest(excess: Array) -> list[int]:
    """Return the times of the largest excess: of each run of times above zero its highest one."""
    above = np.flatnonzero(excess > 0)
    runs = np.split(above, np.flatnonzero(np.diff(above) > 1) + 1) if len(above) else []
    peaks = [int(run[np.argmax(excess[run])]) for run in runs]
    return sorted(peaks, key=lambda time: (-excess[time], time))[:MOST_NEW]
