"""Elimination with Pareto sets: every entry of a message is a set of sums, none beaten.

Ticks, bytes and uncovered ticks have no single minimum; what may be thrown away is only what another
point beats in all of them (the bi-criteria shortest path's labels; Hansen 1980).  Points are also
thrown away when even the best completion, priced by the multipliers, cannot beat the best assignment
that is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.solver.elimination import Elimination, aligned
from autopar.solver.marginals import marginals
from autopar.solver.network import Network, Table
from autopar.solver.problem import Array
from autopar.solver.rows import Goal

MAX_COMBINATIONS = 1 << 17
"""Points that may be looked at; beyond that the caller keeps what it has, with its bound."""
MOST_COMPARED = 1 << 24
"""Pairs of points of one set that may be compared."""
MOST_ENTRIES = 1 << 20
"""Combinations of states that tables are added up for at a time."""
Ints = NDArray[np.intp]


class TooManyPoints(Exception):
    """The Pareto sets grew beyond what is worth computing."""


@dataclass(frozen=True, eq=False)
class Points:
    """Points of several Pareto sets, one set behind the other.

    place  which set each belongs to
    sums   [points, sums]
    state  of the variable that was eliminated last
    picks  [points, messages]: the point of each message that was taken
    """

    place: Ints
    sums: Array
    state: Ints
    picks: Ints

    def at(self, chosen: Ints) -> Points:
        """Some of them."""
        return Points(self.place[chosen], self.sums[chosen], self.state[chosen], self.picks[chosen])


@dataclass(frozen=True, eq=False)
class _Sent:
    """What one elimination leaves: a Pareto set per assignment of the variables in scope.

    `begins`: where the points of each assignment do, and where the last ones end.
    """

    variable: int
    scope: tuple[int, ...]
    sources: tuple[_Sent, ...]
    points: Points
    begins: Ints


def cheapest(
    goal: Goal, best: float, multipliers: tuple[float, ...], found: Elimination
) -> tuple[int, ...] | None:
    """The states of least cost within the limits, if they cost less than `best`; else None.

    `found` is an exact elimination at these multipliers.  Raises `TooManyPoints`.
    """
    network = found.order.network
    outside = marginals(found).outside
    slack = float(len(network.tables))
    cutoff = best + goal.allowance(multipliers) + slack
    run = _Run(network, goal, np.array(goal.priced(multipliers)), cutoff)
    for place, bucket in enumerate(found.order.buckets):
        run.eliminate(bucket.variable, outside[place])
    return run.read_back(best)


class _Run:
    def __init__(self, network: Network, goal: Goal, prices: Array, cutoff: float) -> None:
        self._sizes, self._goal = network.sizes, goal
        self._prices, self._cutoff = prices, cutoff
        self._sent: list[_Sent] = []
        self._roots: list[_Sent] = []
        self._left = MAX_COMBINATIONS
        self._tables = list(network.tables)

    def eliminate(self, variable: int, outside: Array) -> None:
        """Replace what mentions the variable by Pareto sets over its neighbours."""
        tables = [table for table in self._tables if variable in table.scope]
        self._tables = [table for table in self._tables if variable not in table.scope]
        sources = tuple(sent for sent in self._sent if variable in sent.scope)
        self._sent = [sent for sent in self._sent if variable not in sent.scope]
        scopes = [*(table.scope for table in tables), *(sent.scope for sent in sources)]
        scope = tuple(sorted({index for each in scopes for index in each} - {variable}))
        points = self._points((*scope, variable), tables)
        for source in sources:
            points = self._joined(points, source, (*scope, variable))
        sets = math.prod(self._sizes[index] for index in scope)
        size = self._sizes[variable]
        points = Points(points.place // size, points.sums, points.place % size, points.picks)
        points = self._pruned(points, outside.reshape(-1) if scope else np.full(1, -math.inf))
        made = _Sent(variable, scope, sources, points, _begins(points.place, sets))
        (self._sent if scope else self._roots).append(made)

    def _points(self, scope: tuple[int, ...], tables: Sequence[Table]) -> Points:
        """What tables add up to, for all that is allowed of all combinations of states."""
        shape = tuple(self._sizes[index] for index in scope)
        if math.prod(shape) > MOST_ENTRIES:
            raise TooManyPoints
        total = np.zeros((*shape, len(self._prices)))
        for table in tables:
            for column, array in enumerate(table.arrays):
                total[..., column] += aligned(array, table.scope, scope)
        sums = total.reshape(-1, len(self._prices))
        place = np.flatnonzero(np.isfinite(sums[:, 0]))
        self._spend(len(place))
        return Points(place, sums[place], place, np.zeros((len(place), 0), dtype=np.intp))

    def _joined(self, points: Points, source: _Sent, scope: tuple[int, ...]) -> Points:
        """Each point with each of the source's that agrees on the states of both."""
        sizes = tuple(self._sizes[index] for index in source.scope)
        numbers = np.arange(math.prod(sizes)).reshape(sizes)
        shape = tuple(self._sizes[index] for index in scope)
        at = np.broadcast_to(aligned(numbers, source.scope, scope), shape).reshape(-1)
        first, last = source.begins[at[points.place]], source.begins[at[points.place] + 1]
        count = last - first
        self._spend(int(count.sum()))
        mine = np.repeat(np.arange(len(count)), count)
        theirs = np.arange(len(mine)) + np.repeat(first - (count.cumsum() - count), count)
        met = points.at(mine)
        picks = np.column_stack([met.picks, theirs])
        return Points(met.place, met.sums + source.points.sums[theirs], met.state, picks)

    def _spend(self, points: int) -> None:
        self._left -= points
        if self._left < 0:
            raise TooManyPoints

    def _pruned(self, points: Points, rest: Array) -> Points:
        """What neither exceeds a limit, nor costs too much with the least that the rest costs, nor is
        beaten."""
        loads = [points.sums[:, 1:] @ row.weights for row in self._goal.rows]
        hopeful = points.sums @ self._prices + rest[points.place] <= self._cutoff
        for row, load in zip(self._goal.rows, loads, strict=True):
            # What is still to come adds no negative bytes.
            hopeful &= (load <= row.at_most) if row.is_limit else True
        cost = points.sums @ self._goal.prices
        criteria = [
            load if row.is_limit else cost + row.dearest * load
            for row, load in zip(self._goal.rows, loads, strict=True)
        ]
        where = np.flatnonzero(hopeful)
        kept = _unbeaten(points.place[where], np.column_stack([cost, *criteria])[where])
        return points.at(where[kept])

    def read_back(self, best: float) -> tuple[int, ...] | None:
        """The cheapest combination of the roots' points."""
        total = self._points((), self._tables)
        for root in self._roots:
            total = self._pruned(self._joined(total, root, ()), np.full(1, -math.inf))
        costs = [self._goal.cost(sums) for sums in total.sums]
        if not costs or min(costs) >= best:
            return None
        states = [0] * len(self._sizes)
        for root, pick in zip(self._roots, total.picks[int(np.argmin(costs))], strict=True):
            _follow(root, int(pick), states)
        return tuple(states)


def _begins(places: Ints, sets: int) -> Ints:
    """Where each set's points begin, and where the last ones end."""
    found = np.zeros(sets + 1, dtype=np.intp)
    np.cumsum(np.bincount(places, minlength=sets), out=found[1:])
    return found


def _unbeaten(places: Ints, criteria: Array) -> Ints:
    """Rows that no other row of their set equals or undercuts in every column; of equal ones the first.

    Sets come out in order."""
    order = np.lexsort((*criteria.T[::-1], places))
    place, left = places[order], criteria[order]
    # Ranks that fall from set to set: the first row of each is below all rows before it.
    ranks = np.unique(left[:, 1], return_inverse=True)[1] - place * (len(left) + 1)
    kept = np.ones(len(ranks), dtype=bool)
    kept[1:] = ranks[1:] < np.minimum.accumulate(ranks)[:-1]
    if criteria.shape[1] > 2:
        kept = _unbeaten_in_all(place, left, kept)
    return order[np.flatnonzero(kept)]


def _unbeaten_in_all(place: Ints, left: Array, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The same for more than two columns; what is kept by the first two is unbeaten."""
    kept = kept.copy()
    ends = [*np.flatnonzero(np.diff(place)) + 1, len(place)]
    for first, last in zip([0, *ends[:-1]], ends, strict=True):
        if not kept[first:last].all():
            kept[first:last] = _alive(left[first:last])
    return kept


def _alive(left: Array) -> NDArray[np.bool_]:
    """Of rows in order, those that no row before beats."""
    kept = np.zeros(len(left), dtype=bool)
    alive, count = np.ones(len(left), dtype=bool), 0
    for row in range(len(left)):
        if alive[row]:
            count += 1
            if count * len(left) > MOST_COMPARED:
                raise TooManyPoints
            kept[row] = True
            alive &= (left < left[row]).any(axis=1)
    return kept


def _follow(root: _Sent, pick: int, states: list[int]) -> None:
    """Write the states that led to one point."""
    waiting = [(root, pick)]
    while waiting:
        sent, chosen = waiting.pop()
        states[sent.variable] = int(sent.points.state[chosen])
        picks = sent.points.picks[chosen].tolist()
        waiting += zip(sent.sources, picks, strict=True)
