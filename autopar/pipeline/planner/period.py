"""Least period of a full pipeline, given its order and memory; a lower bound on the step.

A family's list runs f(x) microbatches ahead at stage x: the forward of microbatch n + f(x) there
follows the backward of n.  At stage z the backward of n + 1 follows the forward of n + f(z).  Take
stages x to z, with z at or after x.  From the backward of n at x, each action of the forwards x ... z
and the backwards z ... x waits for the one before it, up to the backward of n + f(x) - f(z) + 1 at x.
With t seconds of a microbatch on a stage and c of its transfers in both directions, each such window
gives

    (t(x) + c(x) + t(x + 1) + ... + t(z)) / (f(x) - f(z) + 1)  <=  period        for all x <= z

(t = f + i if backwards are split).  A window occurs at least (M - f(z) + 1) / (f(x) - f(z) + 1) times,
including the first flight, so a step of T seconds allows periods up to p(z) = T / (M - f(z) + 1).
Whether some plan has all windows within T is decided by one pass of the recurrence over the longest
excess of any window that begins at x,

    G(x) = t(x) - p(x) + max(0, c(x) + G(x + 1) - (slope - 1) p(x))   <= 0,

since a smaller G is never worse.  (Periods of later stages are smaller than p(x), so this is a
relaxation.)  The limits of M t + once and of links apply as well.
"""

from __future__ import annotations

import math

import numpy as np

from autopar.pipeline.planner.crossings import walk
from autopar.pipeline.planner.priced import Fitting, Picked, Priced
from autopar.pipeline.planner.recurrence import Array, Crossing, least, suffixes

SLACK = 1e-12
"""Relative tolerance on the step, so that rounding cannot exclude a step that is possible."""


def possible(priced: Priced, step: float) -> tuple[Picked, ...] | None:
    """Return a plan for which these limits allow `step` seconds; None proves that none takes less."""
    many, slope = priced.table.microbatches, priced.family.slope
    allowed = [
        np.where(many * stack.micro + stack.once <= step, flight, math.inf)
        for stack, flight in zip(priced.stacks, priced.flights, strict=True)
    ]
    passing = np.where(many * priced.busy_s <= step, priced.passing_s, math.inf)

    def period(position: int) -> float:
        return step * (1 + SLACK) / max(1, many - priced.in_flight(position) + 1)

    def costs_at(position: int) -> list[Array]:
        return [cost - period(position) for cost in allowed]

    def cross_at(position: int) -> Crossing:
        return _excess(passing, math.inf if slope is None else (slope - 1) * period(position))

    found = suffixes(
        Fitting(priced, None, allowed, period),
        cross_at,
        priced.sizes,
        priced.most_stages,
        lambda position: 0.0,
    )
    return walk(priced, found, costs_at, cross_at) if least(found) < math.inf else None


def _excess(passing: Array, spared: float) -> Crossing:
    """Return the operator max(0, passing + F - spared); infinite where passing + F is."""
    cost = passing.transpose(1, 2, 0)[:, :, :, None]

    def cross(best: Array, cuts: slice) -> Array:
        far = cost[:, :, cuts] + best[None]
        if spared == math.inf:
            return np.where(far < math.inf, 0.0, math.inf)
        far -= spared
        return np.maximum(far, 0.0, out=far)

    return cross


def bracketed(
    priced: Priced, low: float, high: float, halvings: int
) -> tuple[float, list[tuple[Picked, ...]]]:
    """Bisect from the lower bound `low` to `high`; return the raised bound and the plans found."""
    plans = []
    for _ in range(halvings):
        middle = (low + high) / 2
        plan = possible(priced, middle)
        if plan is None:
            low = middle
        else:
            plans.append(plan)
            high = middle
    return low, plans
