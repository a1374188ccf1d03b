"""A gap that is closed by Pareto sets over the states that can still be in the best assignment."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autopar.errors import InfeasibleError
from autopar.solver.dominance import States, reduced
from autopar.solver.dual import Found, Point
from autopar.solver.elimination import eliminate
from autopar.solver.gap_tolerance import GapTolerance
from autopar.solver.marginals import going_back
from autopar.solver.order import ordered
from autopar.solver.pareto import TooManyPoints, cheapest
from autopar.solver.rows import Goal

MOST_HOPEFUL = 8000
"""States that may still be in the optimum, beyond which Pareto sets only grow."""


def closed(goal: Goal, found: Found, care: GapTolerance) -> Found:
    """With the bound, and perhaps the better answer, that Pareto sets give where they stay small.

    First only ticks and limits with a price are followed: what hides is paid at its multiplier.  That is
    a relaxation, so its optimum is a bound; if it costs here what it costs there, it is the optimum.
    Then all limits are, then all is.
    """
    states = hopeful(goal, found)
    if states is None:
        return found
    relaxed = goal.without_cover(found.multipliers)
    for followed in dict.fromkeys((goal.binding(found.multipliers), relaxed, goal)):
        if followed.rows and (found.best is None or found.gap > care.close):
            found = _followed(followed, goal, found, states)
    return found


def hopeful(goal: Goal, found: Found) -> list[States] | None:
    """By variable: the states whose best assignment, at the multipliers, may beat what was found.

    None as soon as there are more than `MOST_HOPEFUL`.
    """
    network = found.elimination.order.network
    cutoff = found.cost + goal.allowance(found.multipliers) + len(network.tables)
    left = [np.arange(size) for size in network.sizes]
    count = 0
    for told in going_back(found.elimination, cutoff):
        states = np.flatnonzero(told.of_states <= cutoff)
        left[told.variable] = states
        count += len(states) if len(states) > 1 else 0
        if count > MOST_HOPEFUL:
            return None
    return left


def _followed(relaxed: Goal, goal: Goal, found: Found, hopeful: list[States]) -> Found:
    pairs = zip(found.multipliers, goal.rows, strict=True)
    multipliers = tuple(m for m, row in pairs if row in relaxed.rows)
    states = _cheapest(relaxed, multipliers, found, hopeful)
    if states is None:
        return found
    best, cost, bound = found.best, found.cost, found.cost
    if states:
        point = Point(states, found.elimination.order.network.sums(states))
        bound = relaxed.cost(point.sums)
        if goal.cost(point.sums) < cost:
            best, cost = point, goal.cost(point.sums)
    elif not math.isfinite(cost):
        raise InfeasibleError("No assignment meets all limits at once. Raise one of them.")
    return replace(found, best=best, cost=cost, bound=min(max(bound, found.bound), cost))


def _cheapest(
    goal: Goal, multipliers: tuple[float, ...], found: Found, hopeful: list[States]
) -> tuple[int, ...] | None:
    """The states of least cost, () where none costs less than what was found, None: not known."""
    if any(len(states) == 0 for states in hopeful):
        return ()
    smaller = reduced(found.elimination.order.network.restricted(hopeful))
    order = ordered(smaller.network)
    if not order.is_exact:
        return None
    try:
        states = cheapest(goal, found.cost, multipliers, eliminate(order, goal.priced(multipliers)))
    except TooManyPoints:
        return None
    if states is None:
        return ()
    pairs = zip(hopeful, smaller.whole(states), strict=True)
    return tuple(int(kept[state]) for kept, state in pairs)
