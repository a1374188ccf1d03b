"""Exact min-sum variable elimination (bucket elimination; Dechter 1999).

    minimise over x:   sum_i u_i[x_i]  +  sum_f t_f[x_scope(f)]

where every u and t is seconds + multiplier * bytes.

A variable v is eliminated by adding up every table that mentions it, T(s, x_v) over its neighbours'
states s, and replacing them by m(s) = min_{x_v} T(s, x_v).  The minimising state is remembered, and
read back in reverse order once the neighbours are known.  The order is greedy: the smallest table
first.  Time and memory are exponential only in the treewidth, which is tiny for transformers.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from autopar.errors import InfeasibleError
from autopar.problem import Array, Assignment, Problem

MAX_TABLE = 1 << 27
"""Entries of the largest table that may be built (1 GiB of float64)."""


@dataclass(frozen=True, eq=False)
class _Decision:
    """How to read an eliminated variable back: its best state given its neighbours' states."""

    variable: int
    scope: tuple[int, ...]
    best: np.ndarray


def eliminate(problem: Problem, multiplier: float = 0.0) -> Assignment:
    """The optimum of seconds + multiplier * bytes.  `bound_s` bounds that same sum from below."""
    tables = _Tables(problem, multiplier)
    decisions = []
    while (variable := tables.next_variable()) is not None:
        decisions.append(tables.eliminate(variable))
    if not math.isfinite(tables.constant):
        raise InfeasibleError("No combination of candidates is allowed by the constraints.")
    states = _read_back(decisions, len(problem.variables))
    return Assignment(states, problem.seconds(states), problem.nbytes(states), tables.constant)


def _read_back(decisions: list[_Decision], count: int) -> tuple[int, ...]:
    states = [0] * count
    for decision in reversed(decisions):
        states[decision.variable] = int(decision.best[tuple(states[i] for i in decision.scope)])
    return tuple(states)


class _Tables:
    """The working set: which tables are left and which variables each mentions."""

    def __init__(self, problem: Problem, multiplier: float) -> None:
        self.sizes = [variable.size for variable in problem.variables]
        self.constant = 0.0
        self.tables: dict[int, tuple[tuple[int, ...], Array]] = {}
        self.mentions: defaultdict[int, set[int]] = defaultdict(set)
        self.left = set(range(len(problem.variables)))
        self.serial = 0
        for index, variable in enumerate(problem.variables):
            self._add((index,), variable.seconds + multiplier * variable.nbytes)
        for factor in problem.factors:
            extra = 0.0 if factor.nbytes is None else multiplier * factor.nbytes
            self._add(factor.scope, factor.seconds + extra)
        self.queue = [(self._weight(index), index) for index in self.left]
        heapq.heapify(self.queue)

    def next_variable(self) -> int | None:
        """The variable whose elimination builds the smallest table."""
        while self.queue:
            weight, index = heapq.heappop(self.queue)
            if index not in self.left:
                continue
            current = self._weight(index)
            if current == weight:
                return index
            heapq.heappush(self.queue, (current, index))
        return None

    def eliminate(self, variable: int) -> _Decision:
        """Minimise the variable out and put the smaller table in the place of those it was in."""
        scope = self._neighbours(variable)
        full = (*scope, variable)
        entries = math.prod(self.sizes[index] for index in full)
        if entries > MAX_TABLE:
            raise InfeasibleError(
                f"Exact elimination would need a table of {entries:.2g} entries: the graph joins too "
                "many undecided tensors. Constrain some of them, or use fewer mesh axes."
            )
        joint = np.zeros([self.sizes[index] for index in full])
        for serial in sorted(self.mentions[variable]):
            joint += self._aligned(serial, full)
        for serial in tuple(self.mentions[variable]):
            self._drop(serial)
        self.left.discard(variable)
        best = joint.argmin(axis=-1)
        least = joint.min(axis=-1)
        if scope:
            self._add(scope, least)
            for index in scope:
                heapq.heappush(self.queue, (self._weight(index), index))
        else:
            self.constant += float(least)
        return _Decision(variable, scope, best)

    def _neighbours(self, variable: int) -> tuple[int, ...]:
        scopes = (self.tables[serial][0] for serial in self.mentions[variable])
        return tuple(sorted({index for scope in scopes for index in scope} - {variable}))

    def _weight(self, variable: int) -> int:
        neighbours = self._neighbours(variable)
        return self.sizes[variable] * math.prod(self.sizes[index] for index in neighbours)

    def _aligned(self, serial: int, full: tuple[int, ...]) -> Array:
        scope, table = self.tables[serial]
        order = sorted(range(len(scope)), key=lambda place: full.index(scope[place]))
        shape = [self.sizes[index] if index in scope else 1 for index in full]
        return table.transpose(order).reshape(shape)

    def _add(self, scope: tuple[int, ...], table: Array) -> None:
        """Keep a table over its undecided variables; those with one state have nothing to say."""
        open_ = tuple(index for index in scope if self.sizes[index] > 1)
        table = table.reshape([self.sizes[index] for index in open_])
        if not open_:
            self.constant += float(table)
            return
        scope = open_
        self.tables[self.serial] = (scope, table)
        for index in scope:
            self.mentions[index].add(self.serial)
        self.serial += 1

    def _drop(self, serial: int) -> None:
        scope, _ = self.tables.pop(serial)
        for index in scope:
            self.mentions[index].discard(serial)
