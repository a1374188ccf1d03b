"""Improves assignments within the limits by forest moves, over all variables and around one."""

from __future__ import annotations

import numpy as np

from autopar.solver.anytime.forest import workspace
from autopar.solver.anytime.memory import cost_of, price, usage
from autopar.solver.anytime.moves import forest_move, local_moves
from autopar.solver.anytime.tables import Index, Tables
from autopar.solver.anytime.timed_problem import Array

DEARER = 1.25
"""Prices at times over the limit rise by this factor with each move of a repair."""
SCALES = (1.0, 0.5, 0.9, 1.1, 0.0, 1.0, 0.97, 1.03)
"""Prices of moves, as parts of those of the best bound, in turns."""
WIDEST = 300
"""Variables in the largest part that is disturbed."""


class Search:
    """The best assignment within the limits so far."""

    def __init__(self, tables: Tables, seed: int) -> None:
        """Start without an assignment."""
        self.tables, self.random = tables, np.random.default_rng(seed)
        self.states: Index | None = None
        self.cost = np.inf
        self.moves = 0
        self._workspace = workspace(tables)

    def offer(self, states: Index) -> bool:
        """Take an assignment if it is within the limits and cheaper."""
        t = self.tables
        cost = cost_of(t, t.cost, states)
        if cost < self.cost and bool(np.all(usage(t, states) <= t.limit)):
            self.states, self.cost = states.copy(), cost
            return True
        return False

    def repair(self, states: Index, prices: Array, moves: int) -> bool:
        """Lead an assignment back within the limits, and improve it; whether it became the best."""
        t = self.tables
        here, course = states.copy(), usage(t, states)
        prices = prices.copy()
        floor = self._floor(prices)
        better = False
        for _ in range(moves):
            over = course > t.limit
            prices[over] = np.maximum(prices[over], floor) * DEARER
            self._everywhere(here, price(t, prices), course)
            if not over.any():
                better |= self.offer(here)
        return better | self.offer(here)

    def _everywhere(self, here: Index, priced: Array, course: Array) -> None:
        """One forest move over all variables; bytes over a limit may not grow."""
        most = np.maximum(course, self.tables.limit)
        order = self.random.permutation(len(here))
        forest_move(self.tables, priced, here, order, course, most, 0.0, self._workspace)
        self.moves += 1

    def _floor(self, prices: Array) -> float:
        """A small price, for times that have none."""
        positive = prices[prices > 0]
        if len(positive):
            return float(np.median(positive)) * 0.1
        scale = float(np.abs(self.tables.limit).max(initial=1.0))
        return float(np.abs(self.tables.cost).sum()) / max(scale, 1.0) * 1e-3

    def improve(self, prices: Array, moves: int) -> bool:
        """Disturb and improve small parts of the best assignment; whether it got better."""
        if self.states is None or len(self.tables.size) == 0:
            return False
        t = self.tables
        before = self.cost
        priced = price(t, prices * SCALES[int(self.random.integers(len(SCALES)))])
        here, best = self.states.copy(), self.states.copy()
        course = usage(t, here)
        scale = abs(cost_of(t, priced, here)) / len(t.size)
        seed = int(self.random.integers(2**31))
        local_moves(t, priced, here, course, moves, WIDEST, scale, seed, best, self._workspace)
        self.moves += 3 * moves
        self.offer(best)
        self._everywhere(here, priced, usage(t, here))
        self.offer(here)
        return self.cost < before
