"""Lower bounds on the simulated step of every plan of a problem, from a relaxation of schedules.

The relaxation keeps these constraints.  A stage's worker runs at most one action at a time, and a link
carries one microbatch at a time in each direction.  The first microbatch reaches a stage only after
the forwards of all stages before it and the transfers between them.  After the last backward of a
stage, its gradient still passes the backwards of these stages.  A stage has no more microbatches in
flight than its family allows.  All other constraints are dropped: most of the order, contention
between links, microbatches that wait for each other.  With t = f + i + w the seconds of a microbatch
on a stage and `once` the seconds exposed once per step:

(1)  step >= sum over stages y before x of head(y)  +  station(x)        for every stage x

     head(y)                               station(x)
     t + transfers in both directions      M t          if backwards are whole
     f + i + transfers in both directions  M (f + i)    if backwards are split
     f + forward transfers                 M t + once   in any case

     and for the link after stage y: M times the longer of its two directions.

(2)  the windows of `period.py`: how soon a list can repeat, given how much is in flight.

(3)  step >= sum over all stages of t and transfers in both directions
             + max over stages of  (M - 1) f + max(0, M - in flight) b,
                                   (M - 1) b + max(0, M - in flight) f

     with b = i + w (if backwards are split: b = i, and f + i for t).  When the last forward of a
     stage ends, M forwards and all but `in flight` backwards are done there; that microbatch still
     has to go to the end and back.  When its first backward starts, one microbatch has been to the
     end, and M backwards and all but `in flight` forwards are left.

Minimising the maximum over x for one row of (1), over all cuts, submeshes and ways within memory,
takes one pass of `recurrence.py`, since the maximum decomposes stage by stage:

    V = min over first stages of max(station, head + V of what follows).

If several ways have one size, their least station and their least head are taken independently, which
relaxes further.  The least step that (2) allows is found by bisection.  (3) is a sum and a maximum, as
in `search.py`: a few limits T on its rates divide plans into classes, each with the bound S(T) + the
class's least rate.  Memory excludes nothing that a simulation would allow, because `in_flight` is
exactly what a family's lists hold.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from autopar.pipeline.planner.crossings import adding, always, longest
from autopar.pipeline.planner.priced import Fitting, Priced
from autopar.pipeline.planner.recurrence import Array, Crossing, any_number, least, suffixes

Part = tuple[Sequence[Array], Sequence[Array], Crossing]
"""Stations per stack, heads per stack, and the operator of the links."""


def quick_bound_of(priced: Priced) -> float:
    """Return (1) with every stage's memory as at the last position: weaker, but much faster."""
    return max(
        any_number(Fitting(priced, stations, heads)(1), cross, priced.sizes)
        for stations, heads, cross in _parts(priced)
    )


def makespan_bound_of(priced: Priced, step: float = math.inf) -> float:
    """Return the lower bound (1) on the step in this table and family, capped at `step`."""
    return min(step, max(_makespan(priced, part, step) for part in _parts(priced)))


def flush_bound_of(priced: Priced, step: float, limits: int = 8) -> float:
    """Return the lower bound (3), refined at `limits` limits and capped at `step`, a known plan's."""
    total = _least_sum(priced, math.inf)
    waiting = [(total, total, 0.0, max(0.0, step - total))]
    for _ in range(limits):
        bound, total, low, high = waiting[0]
        if bound >= step or total == math.inf:
            break
        heapq.heappop(waiting)
        middle = (low + high) / 2
        inner = _least_sum(priced, middle)
        heapq.heappush(waiting, (inner + low, inner, low, middle))
        heapq.heappush(waiting, (total + middle, total, middle, high))
    return min(step, waiting[0][0])


def _least_sum(priced: Priced, limit: float) -> float:
    """Return the least sum of flights and transfers over plans with rates by (3) within the limit."""
    splits, many = priced.family.splits, priced.table.microbatches
    pairs = []
    for stack in priced.stacks:
        back = stack.inputs if splits else stack.inputs + stack.weights
        pairs.append((np.maximum(stack.forward, back), np.minimum(stack.forward, back)))

    def rates_at(position: int) -> list[Array]:
        # In the larger of the two rates, the larger of f and b has the factor M - 1.
        waits = max(0, many - priced.in_flight(position))
        return [_times(many - 1, more) + _times(waits, less) for more, less in pairs]

    found = suffixes(
        Fitting(priced, None, priced.flights, rates_at=rates_at, limit=limit),
        always(adding(priced.passing_s)),
        priced.sizes,
        priced.most_stages,
    )
    return least(found)


def _times(count: int, seconds: Array) -> Array:
    """Return count * seconds; zero for a count of zero, even if the seconds are infinite."""
    return count * seconds if count else np.zeros_like(seconds)


def _makespan(priced: Priced, part: Part, longest_s: float) -> float:
    """Return the bound by one row of (1); infinite if it would exceed `longest_s`."""
    stations, heads, cross = part
    if longest_s < math.inf:
        pairs = zip(stations, heads, strict=True)
        heads = [np.where(station <= longest_s, head, math.inf) for station, head in pairs]
    found = suffixes(
        Fitting(priced, stations, heads),
        always(cross),
        priced.sizes,
        priced.most_stages,
        lambda position: longest_s,
    )
    return least(found)


def _parts(priced: Priced) -> list[Part]:
    table, stacks = priced.table, priced.stacks
    many = table.microbatches
    links = many * priced.busy_s
    passed = priced.flights
    stations = [many * seconds for seconds in passed]
    parts: list[Part] = [(stations, passed, longest(links, priced.passing_s))]
    ends = [np.maximum(many * stack.micro + stack.once, stack.hidden) for stack in stacks]
    if any(bool((end > station).any()) for end, station in zip(ends, stations, strict=True)):
        there = table.send_s + table.latency_s
        parts.append((ends, [stack.forward for stack in stacks], longest(links, there)))
    return parts
