"""What couples all decisions at once: limits on bytes, and communication that compute may cover.

    minimise over x   price . sums(x)  +  sum_i dearest_i * max(0, excess_i(x)),
    excess_i(x) = weights_i . amounts(x) - at_most_i

where amounts are all sums but the first, which are the ticks.

A limit on bytes is a row whose excess is forbidden (dearest = inf); uncovered ticks are paid one by one
(dearest = 1) above zero.  For multipliers  0 <= m_i <= dearest_i,

    g(m) = min_x  price . sums(x) + sum_i m_i weights_i . amounts(x)  -  sum_i m_i at_most_i

is a lower bound on every assignment (weak duality), and plain elimination computes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.solver.network import Network, Prices
from autopar.solver.problem import Array, Limit


@dataclass(frozen=True)
class Row:
    """weights . amounts <= at_most; each unit above costs `dearest` ticks (inf: forbidden).

    The weights are of the bytes of each load, and of uncovered ticks.
    """

    weights: tuple[float, ...]
    at_most: float
    dearest: float = math.inf

    def excess(self, sums: Array) -> float:
        """What the sums have above what is allowed; negative: to spare."""
        return float(np.dot(self.weights, sums[1:])) - self.at_most

    @property
    def is_limit(self) -> bool:
        """Whether an excess is forbidden, not paid."""
        return math.isinf(self.dearest)


@dataclass(frozen=True)
class Goal:
    """What is minimised, and the rows."""

    rows: tuple[Row, ...]
    prices: Prices

    @classmethod
    def of(cls, network: Network, limits: Sequence[Limit] = ()) -> Goal:
        """Least time within the limits; compute covers what it can."""
        within = dict.fromkeys(Row((*network.weights(each), 0.0), each.nbytes) for each in limits)
        alone = (*(0.0 for _ in network.loads), 1.0)
        covered = (Row(alone, 0.0, 1.0),) if network.hides else ()
        return cls((*within, *covered), network.free)

    def cost(self, sums: Array) -> float:
        """The objective; inf where a limit is exceeded."""
        if any(row.is_limit and row.excess(sums) > 0 for row in self.rows):
            return math.inf
        return self.soft(sums)

    def soft(self, sums: Array) -> float:
        """The objective without the limits."""
        paid = (row.dearest * max(0.0, row.excess(sums)) for row in self.rows if not row.is_limit)
        return float(np.dot(self.prices, sums)) + sum(paid)

    def over(self, sums: Array) -> float:
        """By how much limits are exceeded, relative to each; 0 where all are kept."""
        limits = (row for row in self.rows if row.is_limit)
        return sum(max(0.0, row.excess(sums)) / max(abs(row.at_most), 1.0) for row in limits)

    def priced(self, multipliers: Sequence[float]) -> Prices:
        """The prices at which elimination computes g."""
        total = np.array(self.prices)
        for row, multiplier in zip(self.rows, multipliers, strict=True):
            total[1:] += multiplier * np.array(row.weights)
        return tuple(total.tolist())

    def without_cover(self, multipliers: Sequence[float]) -> Goal:
        """The relaxed goal in which what exceeds a soft row is paid at its multiplier, always.

        What hides is at most nothing there, so no assignment costs more than here.
        """
        soft = [0.0 if row.is_limit else m for m, row in zip(multipliers, self.rows, strict=True)]
        return Goal(tuple(row for row in self.rows if row.is_limit), self.priced(soft))

    def binding(self, multipliers: Sequence[float]) -> Goal:
        """The relaxed goal of `without_cover` in which limits without a price are left out, too."""
        pairs = zip(multipliers, self.rows, strict=True)
        rows = tuple(row for m, row in pairs if row.is_limit and m > 0.0)
        return Goal(rows, self.without_cover(multipliers).prices)

    def allowance(self, multipliers: Sequence[float]) -> float:
        """sum_i m_i at_most_i."""
        return sum(m * row.at_most for m, row in zip(multipliers, self.rows, strict=True))
