"""A partial order of groups of layers, and orders derived from it with fewer downsets.

Groups are numbered in a topological order: no group follows a group with a larger number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Order:
    """`before[u, v]` is whether group u must not be on a later stage than group v; transitive."""

    before: NDArray[np.bool_]

    @classmethod
    def of(cls, before: Sequence[Iterable[int]]) -> Order:
        """Return the order in which each group v follows the groups of `before[v]`."""
        reached = np.zeros((len(before), len(before)), dtype=bool)
        for group, earlier in enumerate(before):
            for other in earlier:
                reached[other, group] = True
                reached[:, group] |= reached[:, other]
        return cls(reached)

    def __len__(self) -> int:
        return len(self.before)

    @property
    def covers(self) -> NDArray[np.bool_]:
        """[u, v]: whether v follows u with no group between them."""
        as_numbers = self.before.astype(np.float32)
        between: NDArray[np.bool_] = (as_numbers @ as_numbers) > 0
        return self.before & ~between

    def among(self, chosen: Ints) -> Order:
        """Return the order of the chosen groups alone; `chosen` is sorted."""
        return Order(self.before[np.ix_(chosen, chosen)])

    def merged(self, into: Ints) -> Order:
        """Return the order in which `into[g]` stands for each group g; numbers stay topological."""
        count = int(into.max()) + 1
        before = np.zeros((count, count), dtype=bool)
        one, other = np.nonzero(self.before)
        before[into[one], into[other]] = True
        np.fill_diagonal(before, False)
        return Order(before)

    def banded(self, width: int) -> Order:
        """Return the order in which also groups `width` numbers apart follow each other.

        With width 1 it is a total order, with width `len(self)` this order.  In between it has about
        2**width downsets per group at most (Balas and Simonetti, 2001).
        """
        places = np.arange(len(self))
        return Order(self.before | (places[None, :] - places[:, None] >= width))
