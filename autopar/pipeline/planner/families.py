"""The planner's model of schedules: microbatches in flight per stage, and an estimate of the step.

A stage's *position* s counts from the end: the last stage has 1.  `in_flight` is the exact number of
microbatches that the schedule's lists hold between a forward and its (input) backward.  A lower number
would let plans exceed memory, and any other number would invalidate bounds.

The estimate of a step is

    sum over stages of a  +  max over stages of ( M t + once - a,  (M - f) / f R )

where t is a microbatch's forward and backward on a stage, `once` the exposed seconds once per step, and
a what one microbatch adds to the bubble:
    a = t                       GPipe, 1F1B    (Alpa, eq. 2)
    a = t - 2 w,  a = t - 3 w   ZB-H1, ZB-H2   (Zero Bubble, table 1: its bubbles are (p - 1) of these)
but at least 0, where w is the seconds of weight gradients.  R is the sum of a from this stage to the
end, including transfers in both directions: the time for which a microbatch is in flight, and f is the
number in flight.  If transfers are slow, 1F1B waits for R (Little's law).  The estimate guides the
search; the simulation decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autopar.errors import PlanError
from autopar.pipeline.schedules.eager import eager
from autopar.pipeline.schedules.gpipe import gpipe
from autopar.pipeline.schedules.one_f_one_b import one_f_one_b
from autopar.pipeline.schedules.schedule import Schedule
from autopar.pipeline.schedules.zero_bubble import zb_h1, zb_h2


@dataclass(frozen=True)
class Family:
    """Schedules with one stage per worker; `make(stages, microbatches)` builds the schedule.

    A stage at position s holds min(M, slope s + offset) microbatches, or all M if slope is None.
    `splits`: input and weight gradients are computed separately.  `saved` is how many times a stage's
    weight gradient time is subtracted from its bubble.
    """

    name: str
    make: Callable[[int, int], Schedule]
    slope: int | None = 1
    offset: int = 0
    splits: bool = False
    saved: float = 0.0

    def in_flight(self, position: int, microbatches: int) -> int:
        """Return the maximum number of microbatches in flight at this position from the end."""
        if self.slope is None:
            return microbatches
        return min(microbatches, self.slope * position + self.offset)


GPIPE = Family("gpipe", gpipe, slope=None)
ONE_F_ONE_B = Family("1f1b", one_f_one_b)
EAGER = Family("eager-1f1b", eager, slope=2, offset=-1)
ZB_H1 = Family("zb-h1", zb_h1, splits=True, saved=2.0)
ZB_H2 = Family("zb-h2", zb_h2, slope=2, offset=-1, splits=True, saved=3.0)

FAMILIES = {family.name: family for family in (GPIPE, ONE_F_ONE_B, EAGER, ZB_H1, ZB_H2)}


def family(name: str) -> Family:
    """Return the family of this name; raise `PlanError` if there is none."""
    if name not in FAMILIES:
        raise PlanError(f"no family of schedules is called {name!r}; there are {sorted(FAMILIES)}")
    return FAMILIES[name]
