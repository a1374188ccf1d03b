"""Raises the lower bound: prices on bytes by subgradient steps, messages by sweeps, in turns.

At any prices and messages the bound holds (weak duality).  Each sweep also reads off an assignment,
whose bytes over the limits say which prices should rise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autopar.solver.anytime.memory import cost_of, price, usage
from autopar.solver.anytime.messages import sweep
from autopar.solver.anytime.tables import Index, Tables
from autopar.solver.anytime.timed_problem import Array

FIRST_STEP = 0.1
MEMORY = 0.8
"""The direction keeps this part of the last one."""
PATIENCE = 30
SHORTER = 0.7
"""After so many sweeps without gain, steps get shorter, from the best prices again."""
SETTLING = 20
"""Sweeps before prices move."""
LEAST_STEP, GO_ON = 1e-4, 0.03


@dataclass(frozen=True)
class Reading:
    """An assignment that a sweep read off, its cost, and its largest use over the limit (1: at it)."""

    states: Index
    cost: float
    load: float

    @property
    def fits(self) -> bool:
        """Whether it is within the limit at all times."""
        return self.load <= 1.0


class Ascent:
    """Prices, messages, and the best bound on one problem so far."""

    def __init__(self, tables: Tables, prices: Array | None = None, bound: float = -np.inf) -> None:
        """Start at `prices`, or at none; `bound` is one that is known to hold already."""
        self.tables = tables
        self.prices = np.zeros(len(tables.limit)) if prices is None else prices.copy()
        self.messages = np.zeros(int(tables.message_at[-1]))
        self.states = np.zeros(len(tables.size), dtype=np.int64)
        self.bound, self.sweeps = bound, 0
        self.step, self._stale, self._own = FIRST_STEP, 0, -np.inf
        self._best = (self.prices.copy(), self.messages.copy())
        self._direction = np.zeros_like(self.prices)
        self._scale = float(np.abs(tables.limit).max(initial=1.0)) or 1.0
        self.load_share: Array = np.zeros(len(tables.cost))
        """By state: how often it was read off of late."""

    @property
    def stalled(self) -> bool:
        """Whether longer search hardly raises the bound."""
        return self.step < LEAST_STEP or (len(self.prices) == 0 and self.sweeps > 4 * PATIENCE)

    def go_on(self) -> None:
        """Take long steps again, from the best prices."""
        self.step, self._stale = GO_ON, 0

    @property
    def best_prices(self) -> Array:
        """The prices of the best bound."""
        return self._best[0]

    def advance(self, target: float) -> Reading:
        """Sweep once and move the prices; `target` is what the best assignment is thought to cost."""
        t = self.tables
        forward = self.sweeps % 2 == 0
        priced = price(t, self.prices)
        found = sweep(t, priced, self.messages, forward, self.states)
        bound = float(found - self.prices @ t.limit)
        self.sweeps += 1
        course = usage(t, self.states)
        load = float(np.max(course / np.maximum(t.limit, 1e-9), initial=0.0))
        chosen = t.first[:-1] + self.states
        self.load_share *= 0.95
        self.load_share[chosen] += 0.05
        reading = Reading(self.states.copy(), cost_of(t, t.cost, self.states), load)
        self._judge(bound, target)
        if self.sweeps > SETTLING and len(self.prices):
            self._move(course, target)
        return reading

    def _judge(self, bound: float, target: float) -> None:
        """Note a better bound; after many worse ones, return to the best with shorter steps."""
        self._stale = 0 if bound > self._own + (target - self._own) * 1e-3 else self._stale + 1
        if bound > self._own:
            self._own = bound
            self._best = (self.prices.copy(), self.messages.copy())
            self.bound = max(self.bound, bound)
        if self._stale > PATIENCE and len(self.prices):
            self.step, self._stale = self.step * SHORTER, 0
            self.prices, self.messages = self._best[0].copy(), self._best[1].copy()
            self._direction[:] = 0.0

    def _move(self, course: Array, target: float) -> None:
        slope = (course - self.tables.limit) / self._scale
        slope[(self.prices <= 0) & (slope < 0)] = 0.0
        self._direction = MEMORY * self._direction + (1 - MEMORY) * slope
        length = float(self._direction @ self._direction)
        if length > 0:
            gap = max(target - self._own, 1e-4 * abs(target))
            by = self.step * gap / length / self._scale
            self.prices = np.maximum(0.0, self.prices + by * self._direction)

    def settle(self) -> tuple[Array, Array, float]:
        """Return priced costs, messages and bound at the best prices, after a forward sweep."""
        prices, messages = self._best[0], self._best[1].copy()
        priced = price(self.tables, prices)
        states = self.states.copy()
        for forward in (False, True):
            found = sweep(self.tables, priced, messages, forward, states)
        return priced, messages, float(found - prices @ self.tables.limit)
