"""An equal, smaller problem: variables that follow from others are merged or eliminated.

- A variable whose state another one's leaves no choice joins it (views and elementwise operators).
- A variable without bytes that shares tables with at most two others is minimised out.
- A table that is a sum of two lists goes to the two variables.

Each rewrite is remembered, so that an assignment of what is left is extended to all variables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autopar.solver.anytime.prune import LEFT_TELLS, RIGHT_TELLS, SEPARABLE, Mask
from autopar.solver.anytime.tables import Index
from autopar.solver.anytime.timed_problem import Array, Pair, Span

GROWTH = 1.5
"""A variable may have so many times the states of one that joins it: the latter's tables grow so."""
MOST_MOVED = 6
"""Neighbours of a variable that joins one with more states."""
MOST_SUMS = 200_000
"""Sums in one elimination."""


@dataclass(frozen=True)
class Told:
    """The state of `variable` follows from those of `others`: `states` at their places in `known`."""

    variable: int
    others: tuple[int, ...]
    known: tuple[Index, ...]
    states: Index


@dataclass
class Rewriting:
    """A problem under rewriting: what is left, and how the rest follows from it."""

    costs: list[Array]
    states: list[Index]
    """By variable: the original states that are left."""
    spans: dict[int, list[Span]]
    tables: list[dict[int, Array]]
    """By variable and neighbour; both directions share memory."""
    told: list[Told] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    constant: float = 0.0
    """The cost of variables that no other depends on."""
    kinds: dict[tuple[int, int], int] = field(default_factory=dict)
    """By pair of variables: the kind of their table, as far as it is known."""

    @classmethod
    def of(cls, costs: Sequence[Array], pairs: Sequence[Pair], spans: Sequence[Span]) -> Rewriting:
        """Begin: pairs of the same two variables are added up."""
        made = cls(list(costs), [np.arange(len(c)) for c in costs], {}, [{} for _ in costs])
        for span in spans:
            made.spans.setdefault(span.variable, []).append(span)
        for pair in pairs:
            made.join(pair.first, pair.second, pair.costs)
        return made

    @property
    def left(self) -> list[int]:
        """The variables that are left."""
        return [i for i in range(len(self.costs)) if i not in self.gone]

    def join(self, i: int, j: int, table: Array) -> None:
        """Add a table over two variables."""
        if j in self.tables[i]:
            table = table + self.tables[i][j]
        self._set(i, j, table)

    def _set(self, i: int, j: int, table: Array) -> None:
        self.tables[i][j], self.tables[j][i] = table, table.T
        self.kinds.pop((i, j), None)
        self.kinds.pop((j, i), None)

    def part(self, i: int, j: int) -> Array:
        """Take away the table over two variables; return it by states of i, then j."""
        del self.tables[j][i]
        return self.tables[i].pop(j)

    def keep(self, i: int, alive: Mask) -> None:
        """Drop states of a variable."""
        if alive.all():
            return
        self.costs[i], self.states[i] = self.costs[i][alive], self.states[i][alive]
        for j, table in list(self.tables[i].items()):
            self._set(i, j, np.ascontiguousarray(table[alive]))
        if i in self.spans:
            self.spans[i] = [
                Span(i, span.start, span.stop, span.nbytes[alive]) for span in self.spans[i]
            ]

    def rewrite(self) -> None:
        """Merge and eliminate until nothing changes."""
        waiting = deque(self.left)
        queued = set(waiting)
        while waiting:
            i = waiting.popleft()
            queued.discard(i)
            if i not in self.gone:
                for j in self._at(i):
                    if j not in queued:
                        queued.add(j)
                        waiting.append(j)

    def _at(self, i: int) -> list[int]:
        """Rewrite at one variable; return the variables to look at again."""
        again = []
        for j in list(self.tables[i]):
            if j not in self.tables[i]:
                continue
            kind = self._kind(i, j)
            if kind & SEPARABLE:
                self._split(i, j)
                again.append(j)
            elif kind & LEFT_TELLS and self._may_follow(j, i):
                again += self._follow(j, i)
            elif kind & RIGHT_TELLS and self._may_follow(i, j):
                return again + self._follow(i, j)
        if i not in self.spans and len(self.tables[i]) <= 2:
            again += self._eliminate(i)
        return again

    def _kind(self, i: int, j: int) -> int:
        if (i, j) not in self.kinds:
            self.know(i, j, _kind(self.tables[i][j]))
        return self.kinds[i, j]

    def know(self, i: int, j: int, kind: int) -> None:
        """Remember the kind of a table."""
        self.kinds[i, j] = kind
        other = LEFT_TELLS * bool(kind & RIGHT_TELLS) + RIGHT_TELLS * bool(kind & LEFT_TELLS)
        self.kinds[j, i] = kind & SEPARABLE | other

    def _split(self, i: int, j: int) -> None:
        table = self.part(i, j)
        self.costs[i] = self.costs[i] + table[:, 0]
        self.costs[j] = self.costs[j] + (table[0] - table[0, 0])

    def _may_follow(self, i: int, j: int) -> bool:
        """Whether i, of which each state of j leaves one, joins it: little grows or is moved.

        Of two that tell each other, the one with fewer neighbours joins.
        """
        mine, yours = len(self.tables[i]), len(self.tables[j])
        if mine == 1:
            return True
        if len(self.costs[j]) == len(self.costs[i]):
            return mine < yours or (mine == yours and i > j)
        return mine <= MOST_MOVED and len(self.costs[j]) <= GROWTH * len(self.costs[i])

    def _follow(self, i: int, j: int) -> list[int]:
        """Merge i into j, each of whose states leaves one state of i."""
        table = self.part(j, i)
        to = np.isfinite(table).argmax(axis=1)
        self.costs[j] = self.costs[j] + self.costs[i][to] + table[np.arange(len(to)), to]
        for span in self.spans.pop(i, []):
            moved = Span(j, span.start, span.stop, span.nbytes[to])
            self.spans.setdefault(j, []).append(moved)
        others = list(self.tables[i])
        for other in others:
            self.join(j, other, self.part(i, other)[to])
        self._tell(i, (j,), self.states[i][to])
        return [j, *others]

    def _eliminate(self, i: int) -> list[int]:
        """Minimise a variable without bytes out, if the table that is left is not larger."""
        others = tuple(self.tables[i])
        cost = self.costs[i]
        if len(others) == 2:
            first, second = (len(self.costs[other]) for other in others)
            entries = len(cost) * (first + second)
            if first * second > entries and others[1] not in self.tables[others[0]]:
                return []
            if first * second * len(cost) > MOST_SUMS:
                return []
        parts = [self.part(i, other) for other in others]
        if not others:
            self.constant += float(cost.min())
            self._tell(i, (), self.states[i][int(cost.argmin())])
            return []
        if len(others) == 1:
            sums = cost[:, None] + parts[0]
            best = sums.argmin(axis=0)
            least = np.take_along_axis(sums, best[None], 0)[0]
            self.costs[others[0]] = self.costs[others[0]] + least
        else:
            sums = (cost[:, None] + parts[0])[:, :, None] + parts[1][:, None, :]
            best = sums.argmin(axis=0)
            self.join(others[0], others[1], np.take_along_axis(sums, best[None], 0)[0])
        self._tell(i, others, self.states[i][best])
        return list(others)

    def _tell(self, i: int, others: tuple[int, ...], states: Index) -> None:
        self.gone.add(i)
        known = tuple(self.states[other] for other in others)
        self.told.append(Told(i, others, known, np.asarray(states, dtype=np.int32)))
        self.tables[i].clear()

    def whole(self, left: Sequence[int], chosen: Sequence[int]) -> list[int]:
        """Extend an assignment of the variables `left`, by their present states, to all."""
        states = [0] * len(self.costs)
        for i, state in zip(left, chosen, strict=True):
            states[i] = int(self.states[i][state])
        for each in reversed(self.told):
            at = tuple(
                int(np.searchsorted(known, states[other]))
                for known, other in zip(each.known, each.others, strict=True)
            )
            states[each.variable] = int(each.states[at])
        return states


def _kind(table: Array) -> int:
    """The kind of a table, as `prune.kinds` has it."""
    finite = np.isfinite(table)
    found = 0
    if finite.all():
        rest = table[1:, 1:] - table[1:, :1] - (table[:1, 1:] - table[0, 0])
        scale = float(np.abs(table).max(initial=0.0))
        found += SEPARABLE * bool(np.abs(rest).max(initial=0.0) <= 1e-12 * scale)
    found += LEFT_TELLS * bool(finite.sum(axis=1).max(initial=0) <= 1)
    return found + RIGHT_TELLS * bool(finite.sum(axis=0).max(initial=0) <= 1)
