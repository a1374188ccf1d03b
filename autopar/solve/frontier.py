"""Elimination with Pareto sets: every entry of a message is a set of (ticks, bytes), none beaten.

The sum over two costs has no single minimum; what may be thrown away is only what another point beats
in both (the bi-criteria shortest path's labels; Hansen 1980).  Points are also thrown away when even
the best completion, priced by the Lagrange multiplier, cannot beat the best assignment that is known.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.problem import Array
from autopar.solve.elimination import Elimination
from autopar.solve.marginals import marginals
from autopar.solve.network import Network, Table

MAX_COMBINATIONS = 1 << 17
"""Points that may be looked at; beyond that the caller keeps what it has, with its bound."""


class TooManyPoints(Exception):
    """The Pareto sets grew beyond what is worth computing."""


@dataclass(frozen=True, eq=False)
class Points:
    """A Pareto set, and how each point came about: the variable's state and one point per message."""

    ticks: Array
    nbytes: Array
    state: NDArray[np.intp]
    picks: NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class _Sent:
    """What one elimination leaves: a Pareto set per assignment of the variables in scope."""

    variable: int
    scope: tuple[int, ...]
    sources: tuple[_Sent, ...]
    points: dict[tuple[int, ...], Points]


def cheapest_within(
    network: Network,
    limit: float,
    best: float,
    price: float,
    order: Elimination,
    effort: int = MAX_COMBINATIONS,
) -> tuple[int, ...] | None:
    """The states of fewest ticks within `limit` bytes, if they cost less than `best`; else None.

    `order` is an exact elimination of the same network at `price`.  Raises `TooManyPoints` when more
    than `effort` were looked at.
    """
    outside = marginals(order, network.sizes).outside
    slack = float(len(network.tables))
    cutoff = best + price * limit + slack
    run = _Run(network, limit, cutoff, price, effort)
    for place, bucket in enumerate(order.buckets):
        run.eliminate(bucket.variable, outside[place])
    return run.read_back(best)


class _Run:
    def __init__(
        self, network: Network, limit: float, cutoff: float, price: float, effort: int
    ) -> None:
        self._sizes = network.sizes
        self._limit, self._cutoff, self._price = limit, cutoff, price
        self._sent: list[_Sent] = []
        self._roots: list[_Sent] = []
        self._left = effort
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
            ticks = sum(float(t.ticks[tuple(at[i] for i in t.scope)]) for t in tables)
            sets = [source.points.get(tuple(at[i] for i in source.scope)) for source in sources]
            if math.isinf(ticks) or any(points is None for points in sets):
                continue
            nbytes = sum(float(t.nbytes[tuple(at[i] for i in t.scope)]) for t in tables)
            found.append(self._combined(state, ticks, nbytes, [s for s in sets if s is not None]))
        return found

    def _combined(self, state: int, ticks: float, nbytes: float, sets: list[Points]) -> Points:
        all_ticks, all_nbytes = np.array([ticks]), np.array([nbytes])
        picks = np.zeros((1, 0), dtype=np.intp)
        for points in sets:
            count, more = len(all_ticks), len(points.ticks)
            self._left -= count * more
            if self._left < 0:
                raise TooManyPoints
            all_ticks = np.add.outer(all_ticks, points.ticks).ravel()
            all_nbytes = np.add.outer(all_nbytes, points.nbytes).ravel()
            chosen = np.tile(np.arange(more), count)
            picks = np.column_stack([np.repeat(picks, more, axis=0), chosen])
        self._left -= 1
        if self._left < 0:
            raise TooManyPoints
        return Points(all_ticks, all_nbytes, np.full(len(all_ticks), state), picks)

    def _pruned(self, found: list[Points], rest: float) -> Points | None:
        if not found:
            return None
        ticks = np.concatenate([points.ticks for points in found])
        nbytes = np.concatenate([points.nbytes for points in found])
        hopeful = nbytes <= self._limit
        if math.isfinite(rest):
            hopeful &= ticks + self._price * nbytes + rest <= self._cutoff
        order = np.lexsort((ticks, nbytes))
        order = order[hopeful[order]]
        if not len(order):
            return None
        least = np.minimum.accumulate(ticks[order])
        better = np.concatenate([[True], ticks[order][1:] < least[:-1]])
        chosen = order[better]
        state = np.concatenate([points.state for points in found])
        picks = np.concatenate([points.picks for points in found])
        return Points(ticks[chosen], nbytes[chosen], state[chosen], picks[chosen])

    def read_back(self, best: float) -> tuple[int, ...] | None:
        """The cheapest combination of the roots' points within the limit."""
        ticks = sum(float(table.ticks) for table in self._tables)
        nbytes = sum(float(table.nbytes) for table in self._tables)
        total = self._combined(0, ticks, nbytes, [])
        for root in self._roots:
            points = root.points.get(())
            if points is None:
                return None
            joined = self._combined(0, 0.0, 0.0, [total, points])
            picks = np.column_stack([total.picks[joined.picks[:, 0]], joined.picks[:, 1]])
            joined = Points(joined.ticks, joined.nbytes, joined.state, picks)
            kept = self._pruned([joined], -math.inf)
            if kept is None:
                return None
            total = kept
        winner = int(np.argmin(total.ticks))
        if total.ticks[winner] >= best:
            return None
        states = [0] * len(self._sizes)
        for root, pick in zip(self._roots, total.picks[winner], strict=True):
            _follow(root, int(pick), states)
        return tuple(states)


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
