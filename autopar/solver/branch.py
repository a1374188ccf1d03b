"""A gap under a limit, closed from both sides: decisions are parted (Land and Doig 1960).

At the highest bound a mixture of two assignments would be best.  Where they differ in many small pieces,
a real one lies near; where one piece is large, such as the form of all logits, none does: with it the
limit is exceeded by little, without it much is left over.  So the states of a variable of the largest
piece are parted, those that load little from those that load much; each part has a bound of its own,
which is higher, and shows assignments that the whole did not.  The lowest of the bounds is one of the
whole.

A part is first narrowed: states whose best assignment, at the multipliers, costs more than what is known
already are dropped (reduced-cost fixing).  What is left is often small, and Pareto sets close it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autopar.errors import InfeasibleError
from autopar.solver.closing import closed, hopeful
from autopar.solver.crossover import pieces
from autopar.solver.dominance import Reduced, reduced, undecided
from autopar.solver.dual import Found, Point, best_within
from autopar.solver.gap_tolerance import THOROUGH, GapTolerance
from autopar.solver.order import ordered
from autopar.solver.rows import Goal

FREELY = 4
"""Decisions that are parted whatever that takes."""
FEW, NEAR = 150, 1e-2
"""So many states, or so small a gap, Pareto sets can close."""
CLOSING = 5 * 10**7
"""What that may take, in entries of tables."""


@dataclass(frozen=True, eq=False)
class _Part:
    """Some of the states of each variable, and what is known of their best assignment."""

    left: Reduced
    found: Found


def branched(goal: Goal, found: Found, care: GapTolerance = THOROUGH) -> Found:
    """With the better assignment and the higher bound of a few branches; `found` has some gap."""
    network = found.elimination.order.network
    return _Search(goal, _Part(undecided(network), found), care).run()


class _Search:
    def __init__(self, goal: Goal, root: _Part, care: GapTolerance) -> None:
        self._goal, self._care = goal, care
        self._network = root.found.elimination.order.network
        self._best = root.found
        self._count = itertools.count()
        self._open = [(root.found.bound, next(self._count), root)]
        self._effort = 0
        limited = any(row.is_limit for row in goal.rows)
        self._most = care.effort if limited else 0

    def run(self) -> Found:
        """Part the decision with the lowest bound until the gap is small or the work is done."""
        for turn in itertools.count():
            self._best = replace(self._best, bound=min(self._open[0][0], self._best.cost))
            if self._best.gap <= self._care.close:
                break
            if turn >= FREELY and self._effort >= self._most:
                break
            bound, _, part = heapq.heappop(self._open)
            parts = list(self._parts(part))
            if parts == [part]:
                heapq.heappush(self._open, (bound, next(self._count), part))
                break
            for each in parts:
                least = max(each.found.bound, bound)
                heapq.heappush(self._open, (least, next(self._count), each))
            if not self._open:
                break
        bound = min((bound for bound, _, _ in self._open), default=self._best.cost)
        return replace(self._best, bound=min(bound, self._best.cost))

    def _parts(self, part: _Part) -> Iterator[_Part]:
        """Narrow a part, and close it or split it; yield what is left of it, itself if it is whole."""
        narrow = self._narrowed(part)
        if narrow is None:
            return
        found = self._known(narrow)
        if sum(narrow.left.network.sizes) <= FEW or found.gap <= NEAR:
            found = closed(self._goal, found, self._care)
            self._effort += CLOSING
        narrow = replace(narrow, found=found)
        self._see(narrow)
        if found.bound >= self._best.cost or found.gap <= self._care.close:
            yield narrow
            return
        split = _largest_difference(self._goal, found)
        if split is None:
            yield part
            return
        variable, half = split
        for allowed in (half, ~half):
            states = [np.arange(size) for size in narrow.left.network.sizes]
            states[variable] = np.flatnonzero(allowed)
            child = self._solved(narrow, states)
            if child is not None:
                yield child

    def _known(self, part: _Part) -> Found:
        """What was found in a part, where only what costs less than the best matters."""
        found = part.found
        if found.cost <= self._best.cost:
            return found
        return replace(found, best=None, cost=self._best.cost)

    def _narrowed(self, part: _Part) -> _Part | None:
        """Return a part without states that cannot be in a better assignment; None if none is left."""
        states = hopeful(self._goal, replace(part.found, cost=self._best.cost))
        if states is None or sum(map(len, states)) == sum(part.left.network.sizes):
            return part
        if any(len(each) == 0 for each in states):
            return None
        return self._solved(part, states)

    def _solved(self, part: _Part, states: list[NDArray[np.intp]]) -> _Part | None:
        """Return what is left of a part with these states; None if nothing is allowed or fits."""
        inner = reduced(part.left.network.restricted(states))
        try:
            order = ordered(inner.network)
            found = best_within(order, self._goal, part.found.multipliers, cutoff=self._best.cost)
        except InfeasibleError:
            return None
        self._effort += found.eliminations * order.effort
        made = _Part(part.left.then(states, inner), found)
        self._see(made)
        return made

    def _see(self, part: _Part) -> None:
        """Keep the best assignment, in terms of the whole."""
        found = part.found
        if found.best is None or found.cost >= self._best.cost:
            return
        states = part.left.whole(found.best.states)
        point = Point(states, self._network.sums(states))
        if (cost := self._goal.cost(point.sums)) < self._best.cost:
            self._best = replace(self._best, best=point, cost=cost)


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
    loads = (network.entries(first) - network.entries(second))[:, 1:] @ priced[1:]
    apart = dict.fromkeys(dearest.variables, 0.0)
    for table, load in zip(network.tables, loads.tolist(), strict=True):
        for index in table.scope:
            if index in apart:
                apart[index] += load
    variable = max(dearest.variables, key=lambda index: (abs(apart[index]), -index))
    ends, own = (first[variable], second[variable]), network.amounts_of(variable) @ priced[1:]
    if own[ends[0]] == own[ends[1]]:
        return variable, np.arange(len(own)) == ends[0]
    return variable, own <= (own[ends[0]] + own[ends[1]]) / 2
