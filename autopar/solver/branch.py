"""A gap under a limit, closed from both sides: one decision is parted (Land and Doig 1960).

At the highest bound a mixture of two assignments would be best.  Where they differ in many small pieces,
a real one lies near; where one piece is large, such as the form of all logits, none does: with it the
limit is exceeded by little, without it much is left over.  So the states of a variable of the largest
piece are parted, those that load little from those that load much; each half has a bound of its own,
which is higher, and shows assignments that the whole did not.  The lower of the two is one of the whole.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autopar.errors import InfeasibleError
from autopar.solver.crossover import pieces
from autopar.solver.dual import Found, best_within
from autopar.solver.gap_tolerance import THOROUGH, GapTolerance
from autopar.solver.order import ordered
from autopar.solver.rows import Goal

MOST_BRANCHES = 4
"""Decisions that are parted where no limit binds: then little is gained."""


def branched(goal: Goal, found: Found, care: GapTolerance = THOROUGH) -> Found:
    """With the better assignment and the higher bound of a few branches; `found` has some gap."""
    count = itertools.count()
    open_ = [(found.bound, next(count), found)]
    best = found
    most = MOST_BRANCHES
    if any(row.is_limit for row in goal.rows):
        most = max(most, care.effort // found.elimination.order.effort)
    for _ in range(most):
        bound, _, here = heapq.heappop(open_)
        best = replace(best, bound=min(bound, best.cost))
        split = _largest_difference(goal, here)
        if best.gap <= care.close or split is None:
            heapq.heappush(open_, (bound, next(count), here))
            break
        for half in _halves(goal, here, *split):
            heapq.heappush(open_, (max(half.bound, bound), next(count), half))
            if half.cost < best.cost:
                best = replace(best, best=half.best, cost=half.cost)
        if not open_:
            break
    bound = min((bound for bound, _, _ in open_), default=best.cost)
    return replace(best, bound=min(max(bound, found.bound), best.cost))


def _largest_difference(goal: Goal, found: Found) -> tuple[int, NDArray[np.bool_]] | None:
    """A variable of the dearest piece in which the best planes differ, and half of its states."""
    network = found.elimination.order.network
    priced = np.array(goal.priced(found.multipliers))
    near = sorted(found.points, key=lambda point: float(np.dot(priced, point.sums)))[:2]
    if len(near) < 2:
        return None
    first, second = (point.states for point in near)
    dearest = max(
        pieces(network, first, second),
        key=lambda piece: abs(float(np.dot(goal.prices, piece.change))),
    )
    loads = {index: network.amounts_of(index) @ priced[1:] for index in dearest.variables}
    apart = {index: abs(load[first[index]] - load[second[index]]) for index, load in loads.items()}
    variable = max(dearest.variables, key=lambda index: (apart[index], -index))
    load, ends = loads[variable], (first[variable], second[variable])
    if not apart[variable]:
        return variable, np.arange(len(load)) == ends[0]
    return variable, load <= (load[ends[0]] + load[ends[1]]) / 2


def _halves(goal: Goal, found: Found, variable: int, half: NDArray[np.bool_]) -> list[Found]:
    """What is best with these states, and with the others; nothing where nothing is allowed."""
    network = found.elimination.order.network
    made = []
    for allowed in (half, ~half):
        points = [point for point in found.points if allowed[point.states[variable]]]
        try:
            order = ordered(network.allowing(variable, allowed))
            made.append(best_within(order, goal, found.multipliers, points))
        except InfeasibleError:
            continue
    return made
