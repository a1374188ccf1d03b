"""The anytime method: simplify, raise the bound, read off assignments, improve them, branch.

Work is done in rounds; what a round does depends on the problem, the seed and the rounds before it,
never on the clock.  So equal seeds and equal numbers of rounds give equal answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autopar.errors import InfeasibleError, InternalError
from autopar.solver.anytime.ascent import Reading
from autopar.solver.anytime.branching import Branch
from autopar.solver.anytime.enumeration import cheapest, is_small
from autopar.solver.anytime.helpers import Helpers
from autopar.solver.anytime.search import Search
from autopar.solver.anytime.simplified import Simplified, simplified
from autopar.solver.anytime.timed_problem import TimedProblem

SWEEPS = 40
"""Sweeps per round."""
MOVES_PER_ENTRY, MOVES = 5e-4, (20, 2000)
"""Local moves per round: by the size of the tables, within bounds; as long as the sweeps, about."""
REPAIR = (12, 60)
"""Forest moves that lead an assignment back within the limits: with one known, and before."""
CLOSED = 1e-9
"""A gap that counts as none, as a part of the cost."""


@dataclass(frozen=True)
class Work:
    """What was done: a run with as many rounds and the same seed gives the same answer."""

    rounds: int
    sweeps: int
    moves: int
    branches: int


@dataclass(frozen=True)
class Solution:
    """An assignment within the limits, its cost, and a bound that no assignment undercuts."""

    states: tuple[int, ...]
    cost: float
    bound: float
    work: Work
    left: tuple[int, int]
    """Variables and states after simplification."""

    @property
    def gap(self) -> float:
        """The cost above the bound, as a part of the cost; infinite where that is zero."""
        apart = self.cost - self.bound
        return 0.0 if apart == 0.0 else apart / abs(self.cost) if self.cost else np.inf


class Anytime:
    """The search on one problem, round by round."""

    def __init__(self, problem: TimedProblem, seed: int = 0, processes: int = 1) -> None:
        """Simplify the problem; raises `InfeasibleError` where no assignment is possible."""
        self.problem = problem
        self.root: Simplified = simplified(problem)
        self.search = Search(self.root.tables, seed)
        first = Branch.root(self.root)
        self.open: list[Branch] = [first]
        self.closed = np.inf
        """The least bound of the parts that are not searched further."""
        self.prices = first.ascent.prices
        self.dearest = _dearest(self.root) * (1 + 2 * CLOSED)
        self.rounds = self.sweeps = self.branches = 0
        t = self.root.tables
        self._moves = int(np.clip(len(t.table) * MOVES_PER_ENTRY, *MOVES))
        self._helpers = Helpers(t, seed, processes - 1)

    @property
    def cost(self) -> float:
        """The least cost so far."""
        return self.search.cost + self.root.constant

    @property
    def bound(self) -> float:
        """The best bound so far: parts that are closed may still undercut the cost by rounding."""
        return min([self.cost, self.closed, *(branch.bound for branch in self.open)])

    @property
    def done(self) -> bool:
        """Whether no part is open: the answer is the best, but for rounding."""
        return not self.open

    @property
    def enough(self) -> float:
        """A part with this bound has no better assignment, but for rounding."""
        cost = self.cost if np.isfinite(self.cost) else self.dearest
        return cost - CLOSED * abs(cost)

    def round(self) -> None:
        """Work on the open part with the lowest bound, then on assignments."""
        self.rounds += 1
        branch = min(self.open, key=lambda each: each.bound)
        if is_small(branch.problem.tables):
            self._enumerate(branch)
            self._close_parts()
            return
        self._helpers.give(self.prices, self.search.states, self._moves)
        best = self._advance(branch)
        if len(branch.problem.steps) == 1:
            self.prices = branch.ascent.best_prices
        if best is not None:
            states = np.array(branch.problem.whole(best.states, above=1), dtype=np.int64)
            if not self.search.offer(states):
                self.search.repair(states, self.prices, REPAIR[self.search.states is None])
        self.search.improve(self.prices, self._moves)
        for states in self._helpers.answers():
            self.search.offer(states)
        if branch.ascent.stalled:
            self.open.remove(branch)
            self.open += branch.split(self.cost)
            self.branches += 1
        self._close_parts()

    def _enumerate(self, branch: Branch) -> None:
        """Try all assignments of a part."""
        self.open.remove(branch)
        found = cheapest(branch.problem.tables)
        if found is not None:
            states, cost = found
            self.search.offer(np.array(branch.problem.whole(states, above=1), dtype=np.int64))
            self.closed = min(self.closed, cost + branch.problem.constant)

    def _close_parts(self) -> None:
        """Leave parts that have no better assignment, but for rounding; or none (`dearest`)."""
        if np.isfinite(self.cost):
            done = (each.bound for each in self.open if each.bound >= self.enough)
            self.closed = min([self.closed, *done])
        self.open = [each for each in self.open if each.bound < self.enough]

    def _advance(self, branch: Branch) -> Reading | None:
        """Raise the bound of a part; return the most promising assignment that was read off."""
        best, least = None, np.inf
        constant = branch.problem.constant
        for _ in range(SWEEPS):
            target = self.cost
            if not np.isfinite(target):
                target = branch.bound + 0.5 * abs(branch.bound) + 1.0
            reading = branch.ascent.advance(target - constant)
            self.sweeps += 1
            value = reading.cost * max(1.0, reading.load) ** 2
            if value < least and np.isfinite(value):
                best, least = reading, value
            if branch.ascent.stalled:
                break
        return best

    def close(self) -> None:
        """End the other processes."""
        self._helpers.close()

    def solution(self) -> Solution:
        """The best assignment so far; raises `InfeasibleError` where there is none."""
        if self.search.states is None:
            proved = not self.open
            raise InfeasibleError(
                "No assignment is within the limits."
                if proved
                else f"No assignment within the limits was found in {self.rounds} rounds; there may "
                "be one. Allow more time, or raise the limit."
            )
        states = tuple(self.root.whole(self.search.states))
        cost = self.problem.cost(states)
        if not self.problem.fits(states):
            raise InternalError("The anytime method's answer exceeds a limit.")
        work = Work(self.rounds, self.sweeps, self.search.moves, self.branches)
        left = (len(self.root.tables.size), len(self.root.tables.cost))
        return Solution(states, cost, min(self.bound, cost), work, left)


def _dearest(problem: Simplified) -> float:
    """No assignment costs more: a part with a higher bound has none."""
    t = problem.tables
    own = np.where(np.isfinite(t.cost), np.abs(t.cost), 0.0).sum()
    return (
        float(own + np.where(np.isfinite(t.table), np.abs(t.table), 0.0).sum()) + problem.constant
    )


def solve_anytime(
    problem: TimedProblem,
    seconds: float,
    seed: int = 0,
    rounds: int | None = None,
    processes: int = 1,
    watch: Callable[[Anytime], None] | None = None,
) -> Solution:
    """Search until the seconds or the rounds are over, or the best assignment is found and proved.

    It ends early where another round as long as the last would end late; one is always made.  Raises
    `InfeasibleError` where no assignment was found.
    """
    stop, lasted = time.monotonic() + seconds, 0.0
    run = Anytime(problem, seed, processes)
    try:
        while not run.done and (rounds is None or run.rounds < rounds):
            began = time.monotonic()
            if run.rounds and began + lasted > stop:
                break
            run.round()
            lasted = time.monotonic() - began
            if watch is not None:
                watch(run)
    finally:
        run.close()
    return run.solution()
