"""How much a search may try, by time or by work."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

PER_SECOND = 30_000
"""Downsets for which a search takes a second."""


@dataclass(frozen=True)
class Effort:
    """Limits of a search.

    It ends after `seconds`, or without these after `steps` of its kernels (a few nanoseconds each), so
    that its answer does not depend on the machine.  The other numbers limit the downsets that are
    enumerated: all of them (in `nbytes` of memory, with `edges` pairs of neighbours), those near the
    order of a plan (more if no better plan is found), and those of a part of the groups.
    """

    seconds: float | None = None
    steps: int = 30_000_000_000
    nbytes: int = 2**30
    downsets: int = 1_000_000
    edges: int = 12_000_000
    near: tuple[int, ...] = (5_000, 20_000, 80_000)
    trace: int = 100_000

    def most_downsets(self, nbytes_each: int) -> int:
        """Return the most downsets of all groups, also in view of the seconds and the memory."""
        most = min(self.downsets, self.nbytes // nbytes_each)
        if self.seconds is not None:
            most = min(most, int(self.seconds * PER_SECOND))
        return max(1, most)


@dataclass
class Budget:
    """What is left of an effort; `pairs` of downsets were compared."""

    effort: Effort
    started: float = field(default_factory=time.perf_counter)
    steps: int = 0
    pairs: int = 0

    def goes_on(self, share: float = 1.0) -> bool:
        """Whether this share of the effort is not yet used up."""
        if self.effort.seconds is None:
            return self.steps < share * self.effort.steps
        return time.perf_counter() - self.started < share * self.effort.seconds

    def compare(self, pairs: int) -> None:
        """Count pairs of downsets that were compared."""
        self.pairs += pairs
        self.steps += pairs
