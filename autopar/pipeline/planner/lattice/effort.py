"""How much a search may try, by time or by work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

PER_SECOND = 30_000
"""Downsets for which a search takes a second."""


@dataclass(frozen=True)
class Effort:
    """Limits of a search.

    It ends after `seconds`, or without these after `pairs` compared pairs of downsets, so that its
    answer does not depend on the machine.  The other numbers limit the downsets that are enumerated: all
    of them (with `edges` pairs of neighbours), those near the order of a plan (more if no better plan is
    found), and those of a part of the groups.
    """

    seconds: float | None = None
    pairs: int = 4_000_000_000
    downsets: int = 1_000_000
    edges: int = 12_000_000
    near: tuple[int, ...] = (5_000, 20_000, 80_000)
    trace: int = 100_000

    @property
    def most_downsets(self) -> int:
        """The most downsets of all groups, also in view of the seconds."""
        if self.seconds is None:
            return self.downsets
        return min(self.downsets, 1_000 + int(self.seconds * PER_SECOND))


@dataclass
class Budget:
    """What is left of an effort."""

    effort: Effort
    started: float = field(default_factory=time.perf_counter)
    visited: int = 0

    def spender(self, share: float) -> Callable[[int], bool]:
        """Return a function that counts compared pairs, and says whether to go on: up to this share."""

        def spend(visited: int) -> bool:
            self.visited += visited
            return self.used < share

        return spend

    @property
    def used(self) -> float:
        """The part of the effort that is used up."""
        if self.effort.seconds is None:
            return self.visited / self.effort.pairs
        spent = time.perf_counter() - self.started
        return spent / self.effort.seconds if self.effort.seconds > 0 else 1.0
