"""Prunes and rewrites a timed problem until little changes, and leads assignments back to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.errors import InfeasibleError
from autopar.solver.anytime.prune import Mask, kinds, supported, undominated
from autopar.solver.anytime.reduction import Rewriting
from autopar.solver.anytime.tables import Index, Tables, tables_of
from autopar.solver.anytime.timed_problem import Array, Pair, Span, TimedProblem
from autopar.solver.anytime.times import reduced_times

ROUNDS = 3
LARGEST_DROP = 0.01
"""Another round is worth it where the last one dropped this part of the states."""


@dataclass(frozen=True)
class Simplified:
    """A smaller problem as `tables`; `steps` lead its assignments back, the last one first."""

    tables: Tables
    steps: tuple[tuple[Rewriting, tuple[int, ...]], ...]
    times: Index
    """The times that are left, as places among those before the last step."""

    @property
    def constant(self) -> float:
        """What the whole problem costs beyond what the tables say."""
        return sum(rewriting.constant for rewriting, _ in self.steps)

    def whole(self, states: Index, above: int = 0) -> list[int]:
        """Extend an assignment to all variables of the problem, or of that after `above` steps."""
        found: list[int] = states.tolist()
        for rewriting, left in reversed(self.steps[above:]):
            found = rewriting.whole(left, found)
        return found

    def prices(self, earlier: Array) -> Array:
        """Prices at the times before the last step, each moved to the next time that is left."""
        if len(self.times) == 0:
            return np.zeros(0)
        middles = (self.times[1:] + self.times[:-1] + 1) // 2
        place = np.searchsorted(middles, np.arange(len(earlier)), side="right")
        moved = np.bincount(place, weights=earlier, minlength=len(self.times))
        return moved.astype(np.float64)


def simplified(problem: TimedProblem) -> Simplified:
    """Return the smaller problem; raises `InfeasibleError` where no assignment is possible."""
    spans, limits, times = reduced_times(problem.spans, problem.limits)
    rewriting = Rewriting.of(problem.costs, problem.pairs, spans)
    return _rounds(rewriting, limits, times, ())


def simplified_again(earlier: Simplified, alive: Mask, table: Array) -> Simplified:
    """Return an even smaller problem: only states in `alive`, and other pair costs."""
    t = earlier.tables._replace(table=table)
    costs = [
        np.where(alive[f : f + k], t.cost[f : f + k], np.inf)
        for f, k in zip(t.first[:-1], t.size, strict=True)
    ]
    pairs = [
        Pair(int(i), int(j), table[at:stop].reshape(t.size[i], t.size[j]))
        for i, j, at, stop in zip(t.left, t.right, t.table_at[:-1], t.table_at[1:], strict=True)
    ]
    spans = [
        Span(i, int(t.span_start[n]), int(t.span_stop[n]), t.nbytes[at : at + t.size[i]])
        for i in range(len(t.size))
        for n in range(t.span_at[i], t.span_at[i + 1])
        for at in (int(t.nbytes_at[n]),)
    ]
    times = np.arange(len(t.limit))
    return _rounds(Rewriting.of(costs, pairs, spans), t.limit, times, earlier.steps)


def _rounds(
    rewriting: Rewriting,
    limits: Array,
    times: Index,
    steps: tuple[tuple[Rewriting, tuple[int, ...]], ...],
) -> Simplified:
    for _ in range(ROUNDS):
        left = rewriting.left
        tables = _tables(rewriting, left, limits)
        alive = np.ones(len(tables.cost), dtype=np.bool_)
        supported(tables, alive)
        undominated(tables, alive)
        _keep(rewriting, left, tables, alive)
        for pair, kind in enumerate(kinds(_tables(rewriting, left, limits))):
            i, j = left[tables.left[pair]], left[tables.right[pair]]
            rewriting.know(i, j, int(kind))
        rewriting.rewrite()
        limits, kept = _with_fewer_times(rewriting, limits)
        times = times[kept]
        now = sum(len(rewriting.costs[i]) for i in rewriting.left)
        if now > (1 - LARGEST_DROP) * len(tables.cost):
            break
    left = rewriting.left
    return Simplified(_tables(rewriting, left, limits), (*steps, (rewriting, tuple(left))), times)


def _tables(rewriting: Rewriting, left: Sequence[int], limits: Array) -> Tables:
    """What is left as arrays, the variables numbered anew in their order."""
    number = {i: n for n, i in enumerate(left)}
    pairs = [
        Pair(number[i], number[j], table)
        for i in left
        for j, table in rewriting.tables[i].items()
        if i < j
    ]
    spans = [
        Span(number[i], span.start, span.stop, span.nbytes)
        for i in left
        for span in rewriting.spans.get(i, ())
    ]
    return tables_of([rewriting.costs[i] for i in left], pairs, spans, limits)


def _keep(rewriting: Rewriting, left: Sequence[int], tables: Tables, alive: Mask) -> None:
    for n, i in enumerate(left):
        kept = alive[tables.first[n] : tables.first[n + 1]]
        if not kept.any():
            raise InfeasibleError(
                f"No state of variable {i} fits the states of those that it shares tables with."
            )
        rewriting.keep(i, kept)


def _with_fewer_times(rewriting: Rewriting, limits: Array) -> tuple[Array, Index]:
    every = [span for spans in rewriting.spans.values() for span in spans]
    spans, limits, kept = reduced_times(every, limits)
    rewriting.spans.clear()
    for span in spans:
        rewriting.spans.setdefault(span.variable, []).append(span)
    return limits, kept
