"""What no simulation undercuts: lower bounds on the step of every plan of a problem.

The relaxation.  A stage's worker does at most one thing at a time, and a link carries one microbatch at a time
and direction.  The first microbatch reaches a stage only after the forwards of all stages before it and
the transfers between; after the last backward of a stage its gradient still passes their backwards.  A stage has
no more microbatches in flight than its family says.  Everything else is let go: most of the order, contention
between links, microbatches that wait for each other.  So, with t = f + i + w the seconds of a
microbatch and `once` what is exposed once a step:

(1)  step >= sum over stages y before x of head(y)  +  station(x)        for every stage x

     head(y)                               station(x)
     t, transfers there and back           M t          whole backwards: the last one passes all before it
     f + i, transfers there and back       M (f + i)    split backwards: so does the last input gradient
     f, transfers there                    M t + once   any

     and for a link behind stage y: M times the longer of its two directions.

(2)  the windows of `period.py`: how soon a list can repeat, given how many microbatches are in flight.

Minimising the largest of one pair's terms of (1) over all cuts, submeshes and ways, within memory, is one pass of
`recurrence.py`, since the largest peels off stage by stage:

    V = min over first stages of max(station, head + V of what follows).

Where several ways share a size, their least station and their least head are taken apart from each other, a
relaxation again.  The least step that (2) allows is bracketed by bisection.  Memory relaxes nothing that
a simulation would forbid, as `in_flight` is what a family's lists really hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autopar.stages.crossings import always, longest
from autopar.stages.priced import Fitting, Priced
from autopar.stages.recurrence import Array, Crossing, any_number, least, suffixes

Part = tuple[Sequence[Array], Sequence[Array], Crossing]
"""Stations and heads per stack, and the links."""


def quick_bound_of(priced: Priced) -> float:
    """(1) with the memory of a last stage everywhere: lower, and much faster."""
    return max(
        any_number(Fitting(priced, stations, heads)(1), cross, priced.sizes)
        for stations, heads, cross in _parts(priced)
    )


def makespan_bound_of(priced: Priced) -> float:
    """(1): seconds that no step of this table and family undercuts."""
    return max(_makespan(priced, part) for part in _parts(priced))


def _makespan(priced: Priced, part: Part) -> float:
    stations, heads, cross = part
    found = suffixes(
        Fitting(priced, stations, heads),
        always(cross),
        priced.sizes,
        priced.most_stages,
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
