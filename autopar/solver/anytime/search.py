"""Improves assignments within the limits by forest moves, over all variables and around one."""

from __future__ import annotations

import numpy as np

from autopar.solver.anytime.forest import forest_move
from autopar.solver.anytime.memory import cost_of, price, usage
from autopar.solver.anytime.region import around
from autopar.solver.anytime.tables import Array, Index, Tables

DEARER = 1.25
"""Prices at times over the limit rise by this factor with each move of a repair."""
SCALES = (1.0, 0.5, 0.9, 1.1, 0.0, 1.0, 0.97, 1.03)
"""Prices of moves, as parts of those of the best bound, in turns."""


class Search:
    """The best assignment within the limits so far."""

    def __init__(self, tables: Tables, seed: int) -> None:
        """Start without an assignment."""
        self.tables, self.random = tables, np.random.default_rng(seed)
        self.states: Index | None = None
        self.cost = np.inf
        self.moves = 0

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
        here, wanted, course = states.copy(), states.copy(), usage(t, states)
        prices = prices.copy()
        floor = self._floor(prices)
        better = False
        for _ in range(moves):
            over = course > t.limit
            prices[over] = np.maximum(prices[over], floor) * DEARER
            self._all(here, prices, course, wanted)
            if not over.any():
                better |= self.offer(here)
        return better | self.offer(here)

    def _all(self, here: Index, prices: Array, course: Array, wanted: Index) -> int:
        t = self.tables
        most = np.maximum(course, t.limit)
        order = self.random.permutation(len(t.size))
        self.moves += 1
        return forest_move(
            t, price(t, prices), here, order, course, most, 0.0, 0, wanted
        )

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
        scaled = prices * SCALES[int(self.random.integers(len(SCALES)))]
        priced = price(t, scaled)
        here, course = self.states.copy(), usage(t, self.states)
        wanted = here.copy()
        now = cost_of(t, priced, here)
        for _ in range(moves):
            now = self._disturb(here, course, priced, wanted, now)
        self._all(here, scaled, course, wanted)
        self.offer(here)
        return self.cost < before

    def _disturb(
        self, here: Index, course: Array, priced: Array, wanted: Index, now: float
    ) -> float:
        """Perturb around a variable, improve there, and keep what costs no more."""
        t, random = self.tables, self.random
        count = int(10 ** random.uniform(0.5, 2.5))
        center = int(random.integers(len(t.size)))
        region = around(t, center, min(count, len(t.size)))
        saved, saved_course = here[region].copy(), course.copy()
        noise = abs(now) / len(t.size) * 10 ** random.uniform(-3, 1)
        most = np.maximum(course, t.limit)
        seed = int(random.integers(2**31))
        for turn in range(3):
            order = random.permutation(region)
            forest_move(
                t, priced, here, order, course, most, noise if turn == 0 else 0.0, seed, wanted
            )
        self.moves += 3
        then = cost_of(t, priced, here)
        if then > now:
            here[region] = saved
            course[:] = saved_course
            return now
        self.offer(here)
        return then
