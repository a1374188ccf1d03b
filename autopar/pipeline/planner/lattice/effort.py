"""How much a search may try, by time or by work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Effort:
    """Limits of a search.

    It ends after `seconds`, or without these after `pairs` visited pairs of downsets, so that its answer
    does not depend on the machine.  The other numbers are of downsets: in all, near the order of a
    plan, and of a part of the groups.
    """

    seconds: float | None = None
    pairs: int = 2_000_000_000
    downsets: int = 1_000_000
    near: int = 20_000
    trace: int = 100_000


@dataclass
class Budget:
    """What is left of an effort."""

    effort: Effort
    started: float = field(default_factory=time.perf_counter)
    visited: int = 0

    def spender(self, share: float) -> Callable[[int], bool]:
        """Return a function that counts visited pairs, and says whether this share is not yet used up."""

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
