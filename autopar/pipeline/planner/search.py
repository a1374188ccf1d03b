"""Finds the plan with the least aim: the sum of its delays plus its largest rate, within memory.

For a limit T on rates, `within(T)` runs the recurrence that adds delays over ways whose rate is at
most T.  It drops suffixes in which a microbatch is in flight for too long.  A suffix with the least
sum also has the shortest flight, so no plan is lost.  Its result is S(T), which does not increase with
T.  The least aim is the minimum of S(T) + T over the rates T that occur (Alpa enumerates t_max in the
same role).

T is found by branch and bound over intervals.  Plans whose largest rate lies in [low, high) have an
aim of at least S(high) + low.  Evaluating a T inside finds a plan whose own largest rate is r <= T.
No plan with a largest rate between r and T has a smaller aim, so the interval splits into [low, r) and
(T, high).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from autopar.pipeline.planner.crossings import adding, always, longest, walk
from autopar.pipeline.planner.priced import Fitting, Picked, Priced
from autopar.pipeline.planner.recurrence import least, suffixes


@dataclass(frozen=True)
class Found:
    """The best stages found; no plan of this table and family has an aim below `bound_s`.

    `seen` has all plans found during the search.
    """

    aim_s: float
    stages: tuple[Picked, ...]
    bound_s: float
    seen: tuple[tuple[Picked, ...], ...]


def within(priced: Priced, limit: float) -> tuple[float, tuple[Picked, ...]]:
    """Return S(limit) and a plan that attains it; infinity and an empty plan if there is none."""
    cross_at = always(adding(np.where(priced.link_rate <= limit, priced.passing_s, math.inf)))
    costs = [
        np.where(rate <= limit, delay, math.inf)
        for rate, delay in zip(priced.rates, priced.delays, strict=True)
    ]

    def longest_flight(position: int) -> float:
        turns = priced.turns(position)
        return limit / turns if turns else math.inf

    found = suffixes(
        Fitting(priced, None, costs),
        cross_at,
        priced.sizes,
        priced.most_stages,
        longest_flight,
    )
    total = least(found)
    if total == math.inf:
        return total, ()
    return total, walk(priced, found, lambda position: costs, cross_at)


def slowest(priced: Priced, most: float = math.inf) -> float:
    """Return a lower bound on every plan's largest rate; infinite if it exceeds `most`."""
    found = suffixes(
        Fitting(priced, priced.rates, None),
        always(longest(priced.link_rate, np.zeros_like(priced.link_rate))),
        priced.sizes,
        priced.most_stages,
        lambda position: most,
    )
    return least(found)


def least_aim(priced: Priced, enough: float = 0.0, cutoff: float = math.inf) -> Found | None:
    """Return the plan with the least aim; None if no plan fits.

    The search ends when no plan can improve on the best aim by more than the fraction `enough`, or
    have an aim below `cutoff`.
    """
    total, stages = within(priced, math.inf)
    if not stages:
        return None
    seen = [stages]
    best = priced.aim(stages)
    waiting: list[tuple[float, float, float, float]] = []

    def wait(total: float, low: float, high: float) -> None:
        if high > low:
            heapq.heappush(waiting, (total + low, total, low, high))

    rate = priced.sum_and_rate(stages)[1]
    wait(total, 0.0 if total >= cutoff else slowest(priced, rate), rate)
    bound = best
    while waiting:
        bound, total, low, high = heapq.heappop(waiting)
        if bound >= min(best * (1 - enough), cutoff):
            break
        high = min(high, float(np.nextafter(best - total, math.inf)))
        middle = (low + high) / 2 if high > np.nextafter(low, math.inf) else low
        found, stages = within(priced, middle)
        if stages:
            seen.append(stages)
            best = min(best, priced.aim(stages))
            wait(found, low, min(middle, priced.sum_and_rate(stages)[1]))
        wait(total, float(np.nextafter(middle, math.inf)), high)
        bound = best
    chosen = min(seen, key=priced.aim)
    return Found(best, chosen, min(bound, best), tuple(seen))
