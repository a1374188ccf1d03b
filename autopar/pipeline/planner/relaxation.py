"""What no simulation undercuts: lower bounds on the step of every plan of a problem.

The relaxation.  A stage's worker does at most one thing at a time, and a link carries one
microbatch at a time and direction.  The first microbatch reaches a stage only after the forwards of
all stages before it and the transfers between; after the last backward of a stage its gradient
still passes their backwards.  A stage has no more microbatches in flight than its family says.
Everything else is let go: most of the order, contention between links, microbatches that wait for
each other.  So, with t = f + i + w the seconds of a microbatch and `once` what is exposed once a step:

(1)  step >= sum over stages y before x of head(y)  +  station(x)        for every stage x

     head(y)                               station(x)
     t, transfers there and back           M t          whole backwards: all wait for the last one
     f + i, transfers there and back       M (f + i)    split backwards: so with input gradients
     f, transfers there                    M t + once   any

     and for a link behind stage y: M times the longer of its two directions.

(2)  the windows of `period.py`: how soon a list can repeat, given how much is in flight.

(3)  step >= sum over all stages of t and transfers there and back
             + max over stages of  (M - 1) f + max(0, M - in flight) b,
                                   (M - 1) b + max(0, M - in flight) f

     with b = i + w (i, and f + i for t, where backwards are split).  When the last forward of a
     stage ends, M forwards and all but `in flight` backwards are done there; that microbatch then
     still goes to the end and back.  When its first backward starts, one microbatch has been to the
     end, and M backwards and all but `in flight` forwards are left.

Minimising the largest of one pair's terms of (1) over all cuts, submeshes and ways, within memory,
is one pass of `recurrence.py`, since the largest peels off stage by stage:

    V = min over first stages of max(station, head + V of what follows).

Where several ways share a size, their least station and their least head are taken apart from each
other, a relaxation again.  The least step that (2) allows is bracketed by bisection.  (3) is a sum
and a maximum, as in `search.py`; a few limits T on its rates cut plans into classes, each with its
bound S(T) + the class's least rate.  Memory forbids nothing that a simulation would allow, as
`in_flight` is what a family's lists really hold.
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
"""Stations and heads per stack, and the links."""


def quick_bound_of(priced: Priced) -> float:
    """(1) with the memory of a last stage everywhere: lower, and much faster."""
    return max(
        any_number(Fitting(priced, stations, heads)(1), cross, priced.sizes)
        for stations, heads, cross in _parts(priced)
    )


def makespan_bound_of(priced: Priced, step: float = math.inf) -> float:
    """(1): seconds that no step of this table and family undercuts; more than `step` is not claimed."""
    return min(step, max(_makespan(priced, part, step) for part in _parts(priced)))


def flush_bound_of(priced: Priced, step: float, limits: int = 8) -> float:
    """(3), looking at so many limits; `step` is known of some plan, and more is not claimed."""
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
    """Of flights and transfers, over plans whose rates by (3) are within the limit."""
    splits, many = priced.family.splits, priced.table.microbatches
    pairs = []
    for stack in priced.stacks:
        back = stack.inputs if splits else stack.inputs + stack.weights
        pairs.append((np.maximum(stack.forward, back), np.minimum(stack.forward, back)))

    def rates_at(position: int) -> list[Array]:
        # The larger of f and b counts M - 1 times in the larger of the two rates.
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
    """Nothing, however long it takes, where it does not happen."""
    return count * seconds if count else np.zeros_like(seconds)


def _makespan(priced: Priced, part: Part, longest_s: float) -> float:
    """Infinite where it would be longer."""
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
