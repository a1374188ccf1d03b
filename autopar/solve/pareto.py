"""Elimination with Pareto sets: every entry of a message is a set of sums, none beaten.

Ticks, bytes and uncovered ticks have no single minimum; what may be thrown away is only what another
point beats in all of them (the bi-criteria shortest path's labels; Hansen 1980).  Points are also
thrown away when even the best completion, priced by the multipliers, cannot beat the best assignment
that is known.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.solve.elimination import Elimination
from autopar.solve.marginals import marginals
from autopar.solve.network import Network, Table
from autopar.solve.problem import Array
from autopar.solve.rows import Goal

MAX_COMBINATIONS = 1 << 17
"""Points that may be looked at; beyond that the caller keeps what it has, with its bound."""


class TooManyPoints(Exception):
    """The Pareto sets grew beyond what is worth computing."""


@dataclass(frozen=True, eq=False)
class Points:
    """A Pareto set, and how each point came about: the variable's state and one point per message."""

    sums: Array
    state: NDArray[np.intp]
    picks: NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class _Sent:
    """What one elimination leaves: a Pareto set per assignment of the variables in scope."""

    variable: int
    scope: tuple[int, ...]
    sources: tuple[_Sent, ...]
    points: dict[tuple[int, ...], Points]


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
        made = _Sent(variable, scope, sources, {})
        for states in itertools.product(*(range(self._sizes[index]) for index in scope)):
            here = dict(zip(scope, states, strict=True))
            points = self._points(variable, here, tables, sources)
            kept = self._pruned(points, float(outside[states]) if scope else -math.inf)
            if kept is not None:
                made.points[states] = kept
        (self._sent if scope else self._roots).append(made)

    def _points(
        self, variable: int, here: dict[int, int], tables: list[Table], sources: tuple[_Sent, ...]
    ) -> list[Points]:
        found = []
        for state in range(self._sizes[variable]):
            at = {**here, variable: state}
            sums = sum((_entry(table, at) for table in tables), np.zeros(4))
            sets = [source.points.get(tuple(at[i] for i in source.scope)) for source in sources]
            if math.isinf(sums[0]) or any(points is None for points in sets):
                continue
            found.append(self._combined(state, sums, [s for s in sets if s is not None]))
        return found

    def _combined(self, state: int, sums: Array, sets: list[Points]) -> Points:
        every = sums[None, :]
        picks = np.zeros((1, 0), dtype=np.intp)
        for points in sets:
            count, more = len(every), len(points.sums)
            self._spend(count * more)
            every = (every[:, None, :] + points.sums[None, :, :]).reshape(-1, 4)
            chosen = np.tile(np.arange(more), count)
            picks = np.column_stack([np.repeat(picks, more, axis=0), chosen])
        self._spend(1)
        return Points(every, np.full(len(every), state), picks)

    def _spend(self, points: int) -> None:
        self._left -= points
        if self._left < 0:
            raise TooManyPoints

    def _pruned(self, found: list[Points], rest: float) -> Points | None:
        if not found:
            return None
        sums = np.concatenate([points.sums for points in found])
        loads = [sums[:, 1:] @ row.weights for row in self._goal.rows]
        hopeful = np.ones(len(sums), dtype=bool)
        for row, load in zip(self._goal.rows, loads, strict=True):
            # What is still to come adds no negative bytes.
            hopeful &= (load <= row.at_most) if row.is_limit else True
        if math.isfinite(rest):
            hopeful &= sums @ self._prices + rest <= self._cutoff
        if not hopeful.any():
            return None
        cost = sums @ self._goal.prices
        criteria = [
            load if row.is_limit else cost + row.dearest * load
            for row, load in zip(self._goal.rows, loads, strict=True)
        ]
        where = np.flatnonzero(hopeful)
        chosen = where[_unbeaten(np.column_stack([cost, *criteria])[where])]
        state = np.concatenate([points.state for points in found])
        picks = np.concatenate([points.picks for points in found])
        return Points(sums[chosen], state[chosen], picks[chosen])

    def read_back(self, best: float) -> tuple[int, ...] | None:
        """The cheapest combination of the roots' points."""
        total = self._combined(0, sum((_entry(t, {}) for t in self._tables), np.zeros(4)), [])
        for root in self._roots:
            points = root.points.get(())
            if points is None:
                return None
            joined = self._combined(0, np.zeros(4), [total, points])
            picks = np.column_stack([total.picks[joined.picks[:, 0]], joined.picks[:, 1]])
            kept = self._pruned([Points(joined.sums, joined.state, picks)], -math.inf)
            if kept is None:
                return None
            total = kept
        costs = [self._goal.cost(sums) for sums in total.sums]
        winner = int(np.argmin(costs))
        if costs[winner] >= best:
            return None
        states = [0] * len(self._sizes)
        for root, pick in zip(self._roots, total.picks[winner], strict=True):
            _follow(root, int(pick), states)
        return tuple(states)


def _entry(table: Table, at: dict[int, int]) -> Array:
    place = tuple(at[index] for index in table.scope)
    return np.array([array[place] for array in table.arrays])


def _unbeaten(criteria: Array) -> NDArray[np.intp]:
    """Rows that no other row equals or undercuts in every column; of equal ones the first."""
    order = np.lexsort(criteria.T[::-1])
    left = criteria[order]
    if criteria.shape[1] == 2:
        least = np.minimum.accumulate(left[:, 1])
        kept = np.flatnonzero(np.concatenate([[True], left[1:, 1] < least[:-1]])).tolist()
        return np.asarray(order[kept])
    kept = []
    alive = np.ones(len(left), dtype=bool)
    for place in range(len(left)):
        if alive[place]:
            kept.append(place)
            alive &= (left < left[place]).any(axis=1)
    return np.asarray(order[kept])


def _follow(root: _Sent, pick: int, states: list[int]) -> None:
    """Write the states that led to one point; sources stand on variables that are known by then."""
    waiting = [(root, pick)]
    while waiting:
        sent, chosen = waiting.pop()
        points = sent.points[tuple(states[index] for index in sent.scope)]
        states[sent.variable] = int(points.state[chosen])
        waiting += [
            (source, int(point))
            for source, point in zip(sent.sources, points.picks[chosen], strict=True)
        ]
