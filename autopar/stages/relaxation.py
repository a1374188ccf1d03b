"""What no simulation undercuts: lower bounds on the step of every plan of a problem.

The relaxation.  A stage's worker does at most one thing at a time, and a link carries one microbatch at a time
and direction.  The first microbatch reaches a stage only after the forwards of all stages before it and
the transfers between; after the last backward of a stage its gradient still passes their backwards.
Everything else is let go: order, contention between links, microbatches that wait for each other. So

    step >= sum over stages y before x of head(y)  +  station(x)        for every stage x

for each of these pairs, with t = f + i + w the seconds of a microbatch and `once` what is exposed once a step:

    head(y)                               station(x)
    t, transfers there and back           M t          whole backwards: the last one passes all before it
    f + i, transfers there and back       M (f + i)    split backwards: so does the last input gradient
    f, transfers there                    M t + once   any

and for a link behind stage y: M times the longer of its two directions.  Minimising the largest of one
pair's terms over all cuts, submeshes and ways, within memory, is one pass of the recurrence of
`recurrence.py`, since the largest peels off stage by stage:

    V = min over first stages of max(station, head + V of what follows).

Where several ways share a size, their least station and their least head are taken apart from each
other (a relaxation again).  `in_flight` of a family is what its schedules really hold, so memory relaxes nothing
that a simulation would forbid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autopar.stages.priced import Priced, crossing_max, steps_of
from autopar.stages.recurrence import Array, Step, any_number, suffixes


def bound_of(priced: Priced) -> float:
    """Seconds that no step of this table and family undercuts."""
    return max(_value(priced, *parts, exact=True) for parts in _parts(priced))


def quick_bound_of(priced: Priced) -> float:
    """The same with the memory of a last stage everywhere: lower, and much faster."""
    return max(_value(priced, *parts, exact=False) for parts in _parts(priced))


def _parts(priced: Priced) -> list[tuple[Sequence[Array], Sequence[Array], Array]]:
    """Pairs of stations and heads per group, and what a transfer adds to a head."""
    table, groups = priced.table, priced.groups
    many = table.microbatches
    ends = [np.maximum(many * g.micro + g.once, g.hidden) for g in groups]
    there = table.send_s + table.latency_s
    any_order = (ends, [group.forward for group in groups], there)
    if priced.family.splits:
        both = [group.apart for group in groups]
        return [any_order, ([many * seconds for seconds in both], both, priced.passing_s)]
    whole = [group.micro for group in groups]
    passed = ([many * seconds for seconds in whole], whole, priced.passing_s)
    once = any((end > many * g.micro).any() for end, g in zip(ends, groups, strict=True))
    return [passed, any_order] if once else [passed]


def _value(
    priced: Priced, stations: Sequence[Array], heads: Sequence[Array], passing: Array, exact: bool
) -> float:
    cross = crossing_max(priced.table.microbatches * priced.busy_s, passing)
    sizes = priced.table.borders, priced.problem.positions, priced.devices

    def steps(position: int) -> list[Step]:
        fits = [group.flights >= priced.in_flight(position) for group in priced.groups]
        return steps_of(
            priced.groups,
            [np.where(fit, array, math.inf) for fit, array in zip(fits, stations, strict=True)],
            [np.where(fit, array, math.inf) for fit, array in zip(fits, heads, strict=True)],
        )

    if not exact:
        return float(any_number(steps(1), cross, *sizes)[:, 0, -1].min())
    found = suffixes(steps, cross, *sizes, priced.most_stages)
    return min((float(best[:, 0, -1].min()) for best in found), default=math.inf)
