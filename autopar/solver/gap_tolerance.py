"""Which gaps between an answer and its bound are worth more work."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class GapTolerance:
    """Gaps, relative to the answer's cost.

    close  smaller ones are reported as they are
    wide   larger ones are branched on
    far    larger ones are too large for Pareto sets
    effort  how much work branching may take, in entries of tables (`Order.effort`)
    """

    close: float
    wide: float
    far: float
    effort: int = 10**8

    @property
    def sooner(self) -> GapTolerance:
        """Where only the answer matters, not its bound."""
        return replace(self, close=self.wide, effort=min(self.effort, FAIR.effort))

    @property
    def within_limits(self) -> GapTolerance:
        """Under limits at every time, where each round takes longer and smaller gaps seldom close."""
        close, wide = max(self.close, FAIR.wide), max(self.wide, FAIR.wide)
        return replace(self, close=close, wide=wide, far=min(self.far, FAR_WITHIN))


FAR_WITHIN = 2e-2
"""Under limits at every time, larger gaps are branched on first."""
THOROUGH = GapTolerance(close=5e-4, wide=2e-3, far=math.inf, effort=6 * 10**8)
FAIR = GapTolerance(close=2e-3, wide=5e-3, far=5e-3)
"""For a stage of several: the pipeline keeps pace with the slowest.  Of 78 gaps of Llama-3-405B's
stages Pareto sets closed three, none of which was above 0.4 %."""
ANY = GapTolerance(close=5e-2, wide=5e-2, far=5e-2)
"""Where an assignment is wanted that fits, whatever it costs."""
