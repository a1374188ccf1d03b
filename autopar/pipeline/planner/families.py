"""Schedules as the planner sees them: how many microbatches a stage holds, and how long a step takes.

A stage's *position* s counts from the end: the last stage has 1.  `in_flight` is what the
schedule's lists really hold between a forward and its (input) backward: less would let memory be
exceeded, and either would spoil a bound.

The estimate of a step is

    sum over stages of a  +  max over stages of ( M t + once - a,  (M - f) / f R )

with t a microbatch's forward and backward on a stage, a what one microbatch costs in the bubble:
    a = t                       GPipe, 1F1B    (Alpa, eq. 2)
    a = t - 2 w,  a = t - 3 w   ZB-H1, ZB-H2   (Zero Bubble, table 1: its bubbles are (p - 1) of these)
but at least 0, where w are the seconds of weight gradients; R is the sum of a, transfers there and
back included, from this stage to the end: how long a microbatch is in flight, of which there are f.
Where transfers are slow that is what 1F1B waits for (Little's law).  The estimate steers the search;
the simulation decides.
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
    """Schedules with one stage per worker; `make(stages, microbatches)` is the list of actions.

    A stage at position s holds min(M, slope s + offset) microbatches, or all M where slope is None.
    `splits` says that input and weight gradients are computed apart; `saved` is how often a stage's
    weight gradients fill its bubble.
    """

    name: str
    make: Callable[[int, int], Schedule]
    slope: int | None = 1
    offset: int = 0
    splits: bool = False
    saved: float = 0.0

    def in_flight(self, position: int, microbatches: int) -> int:
        """Microbatches between forward and backward, at the most, on a stage so far from the end."""
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
    """By its name."""
    if name not in FAMILIES:
        raise PlanError(f"no family of schedules is called {name!r}; there are {sorted(FAMILIES)}")
    return FAMILIES[name]
