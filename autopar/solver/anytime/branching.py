"""Open subproblems: each has a bound of its own, and the lowest one holds for the whole problem.

Where prices on bytes leave a gap, it is most often one large decision that is made half and half.
Its states are split into those with few and those with many bytes; with the best assignment known,
states that would raise a bound above its cost are dropped, and the rest is simplified again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autopar.errors import InfeasibleError
from autopar.solver.anytime.ascent import Ascent
from autopar.solver.anytime.memory import price
from autopar.solver.anytime.prune import Mask, affordable
from autopar.solver.anytime.simplified import Simplified, simplified_again
from autopar.solver.anytime.timed_problem import Array

MOST_ENTRIES = 3_000_000
"""Larger problems are not split: their decisions are many and small."""


@dataclass(eq=False)
class Branch:
    """A part of all assignments, and the search for its bound."""

    problem: Simplified
    ascent: Ascent
    depth: int = 0

    @property
    def bound(self) -> float:
        """No assignment of this part costs less."""
        return self.ascent.bound + self.problem.constant

    @classmethod
    def root(cls, problem: Simplified) -> Branch:
        """All assignments."""
        return cls(problem, Ascent(problem.tables))

    def within(self, alive: Mask, table: Array, depth: int) -> Branch | None:
        """The part with some states and pairs only; None if no assignment is left."""
        try:
            smaller = simplified_again(self.problem, alive, table)
        except InfeasibleError:
            return None
        prices = smaller.prices(self.ascent.best_prices)
        ascent = Ascent(smaller.tables, prices, self.bound - smaller.constant)
        ascent.go_on()
        return Branch(smaller, ascent, depth)

    def affordable(self, best: float) -> tuple[Mask, Array]:
        """What an assignment cheaper than `best` may use: a mask of states, and pair costs."""
        t = self.problem.tables
        priced, messages, bound = self.ascent.settle()
        alive = np.ones(len(t.cost), dtype=np.bool_)
        table = t.table.copy()
        affordable(t, priced, messages, best - self.problem.constant - bound, alive, table)
        return alive, table

    def split(self, best: float) -> list[Branch]:
        """Return this part in two, or smaller, or nothing where it has no cheaper assignment."""
        alive, table = self.affordable(best)
        t = self.problem.tables
        entries = np.isfinite(t.table).sum()
        if np.isfinite(table).sum() < 0.9 * entries or alive.sum() < 0.9 * len(alive):
            smaller = self.within(alive, table, self.depth)
            return [] if smaller is None else [smaller]
        if len(t.table) > MOST_ENTRIES or len(t.size) == 0:
            self.ascent.go_on()
            return [self]
        parts = [alive & half for half in self._halves(alive)]
        made = [self.within(part, table, self.depth + 1) for part in parts]
        return [each for each in made if each is not None]

    def _halves(self, alive: Mask) -> tuple[Mask, Mask]:
        """Two masks that split the states of the variable whose priced bytes vary most.

        Where none vary, they split the variable with most states: the one read off most, and others.
        """
        t = self.problem.tables
        weight = price(t, self.ascent.best_prices) - t.cost
        share = np.where(alive, self.ascent.load_share, 0.0) + 1e-6 * alive
        sums = np.add.reduceat(share, t.first[:-1])
        means = np.add.reduceat(share * weight, t.first[:-1]) / sums
        owner = np.repeat(np.arange(len(t.size)), t.size)
        spread = np.add.reduceat(share * (weight - means[owner]) ** 2, t.first[:-1]) / sums
        chosen = int(spread.argmax())
        first = weight <= means[chosen]
        if not spread[chosen] > 1e-12 * float(np.abs(weight).max()) ** 2:
            chosen = int(np.add.reduceat(alive, t.first[:-1], dtype=np.int64).argmax())
            own = slice(t.first[chosen], t.first[chosen + 1])
            first = np.zeros(len(alive), dtype=np.bool_)
            first[t.first[chosen] + int(share[own].argmax())] = True
        return (owner != chosen) | first, (owner != chosen) | ~first
