"""A `Problem` made ready for solving: whole numbers of ticks, and equal tables only once.

Seconds are counted in picoseconds, or coarser where there are very many.  Sums of whole numbers below
2^53 are exact in float64, whatever their order, so solvers agree to the last digit and a tie is a tie.
Arrays of equal content are one object: what was computed for one layer of a model is found again for
the next (see `elimination`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from autopar.problem import Array, Problem

FINEST_S = 1e-12
MOST = float(2**53)
"""Ticks that float64 counts exactly: two and a half hours of picoseconds."""


@dataclass(frozen=True, eq=False)
class Table:
    """Ticks, bytes and uncovered ticks over the states of some variables."""

    scope: tuple[int, ...]
    ticks: Array
    nbytes: Array
    uncovered: Array


@dataclass(frozen=True, eq=False)
class Network:
    """Variables by number of states, and the tables whose sum is the objective."""

    sizes: tuple[int, ...]
    tables: tuple[Table, ...]
    tick_s: float

    @classmethod
    def of(cls, problem: Problem) -> Network:
        """Round a problem to ticks."""
        tick_s = _tick_s(problem)
        shared = Shared(tick_s)
        tables = tuple(
            Table(
                t.scope,
                shared.ticks(t.seconds),
                shared.zeros(t.seconds.shape) if t.nbytes is None else shared.nbytes(t.nbytes),
                shared.zeros(t.seconds.shape) if t.uncovered is None else shared.ticks(t.uncovered),
            )
            for t in problem.tables
        )
        return cls(tuple(variable.size for variable in problem.variables), tables, tick_s)

    def ticks(self, states: Sequence[int]) -> float:
        """The objective of one assignment."""
        return float(sum(t.ticks[tuple(states[i] for i in t.scope)] for t in self.tables))

    def nbytes(self, states: Sequence[int]) -> float:
        """The bytes of one assignment."""
        return float(sum(t.nbytes[tuple(states[i] for i in t.scope)] for t in self.tables))

    def uncovered(self, states: Sequence[int]) -> float:
        """The ticks of one assignment's hideable communication that compute does not cover."""
        return float(sum(t.uncovered[tuple(states[i] for i in t.scope)] for t in self.tables))

    @property
    def hides(self) -> bool:
        """Whether anything may be covered at all."""
        return any(array.any() for array in {id(t): t.uncovered for t in self.tables}.values())

    def exposing(self, share: float) -> Network:
        """The network in which uncovered ticks are paid at a price between 0 and 1, never less.

        Rounded down, once per table: what is optimal here is a lower bound there.
        """
        shared = Shared(self.tick_s)
        tables = tuple(
            replace(
                t,
                ticks=shared.priced(t.ticks, t.uncovered, share),
                uncovered=shared.zeros(t.ticks.shape),
            )
            for t in self.tables
        )
        return replace(self, tables=tables)

    def without(self, decided: Sequence[int]) -> Network:
        """The network over the other variables; these have one state each and leave constants."""
        left = [index for index in range(len(self.sizes)) if index not in set(decided)]
        number = {index: place for place, index in enumerate(left)}
        shared = Shared(self.tick_s)
        tables = tuple(
            Table(
                tuple(number[i] for i in table.scope if i in number),
                shared.squeezed(table.ticks, [i in number for i in table.scope]),
                shared.squeezed(table.nbytes, [i in number for i in table.scope]),
                shared.squeezed(table.uncovered, [i in number for i in table.scope]),
            )
            for table in self.tables
        )
        return Network(tuple(self.sizes[index] for index in left), tables, self.tick_s)

    def restricted(self, kept: Sequence[NDArray[np.intp]]) -> Network:
        """The network over these states of each variable."""
        shared = Shared(self.tick_s)
        tables = tuple(
            Table(
                table.scope,
                shared.selected(table.ticks, [kept[i] for i in table.scope]),
                shared.selected(table.nbytes, [kept[i] for i in table.scope]),
                shared.selected(table.uncovered, [kept[i] for i in table.scope]),
            )
            for table in self.tables
        )
        return Network(tuple(len(states) for states in kept), tables, self.tick_s)


def _tick_s(problem: Problem) -> float:
    """A picosecond, or the least multiple of it in which the largest possible sum is exact."""
    seconds = [table.seconds for table in problem.tables]
    tables = [*seconds, *(t.uncovered for t in problem.tables if t.uncovered is not None)]
    largest = {id(t): float(np.abs(t[np.isfinite(t)]).max(initial=0.0)) for t in tables}
    whole = sum(largest[id(table)] for table in tables) / (MOST * FINEST_S)
    return FINEST_S * 2.0 ** max(0, math.ceil(math.log2(max(whole, 1.0))))


@dataclass
class Shared:
    """Gives equal arrays as one object."""

    tick_s: float
    _by_content: dict[object, Array] = field(default_factory=dict)
    _by_origin: dict[object, Array] = field(default_factory=dict)
    _alive: list[object] = field(default_factory=list)

    def ticks(self, seconds: Array) -> Array:
        """Seconds as whole ticks."""
        return self._once(
            ("ticks", id(seconds)), (seconds,), lambda: np.rint(seconds / self.tick_s)
        )

    def nbytes(self, nbytes: Array) -> Array:
        """Bytes as whole numbers, rounded up."""
        return self._once(("nbytes", id(nbytes)), (nbytes,), lambda: np.ceil(nbytes))

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """One object per shape."""
        return self._once(("zeros", shape), (), lambda: np.zeros(shape))

    def priced(self, ticks: Array, uncovered: Array, price: float) -> Array:
        """Ticks and uncovered ticks at a price, rounded down."""
        if price == 0.0 or not uncovered.any():
            return ticks
        key = ("priced", id(ticks), id(uncovered))
        return self._once(key, (ticks, uncovered), lambda: ticks + np.floor(price * uncovered))

    def selected(self, array: Array, kept: Iterable[NDArray[np.intp]]) -> Array:
        """The entries of these states."""
        states = tuple(kept)
        if array.shape == tuple(map(len, states)):
            return array
        key = ("selected", id(array), *map(id, states))
        return self._once(key, (array, *states), lambda: array[np.ix_(*states)])

    def squeezed(self, array: Array, is_left: Sequence[bool]) -> Array:
        """Without the dims (of size one) that are not left."""
        if all(is_left):
            return array
        gone = tuple(place for place, stays in enumerate(is_left) if not stays)
        return self._once(("squeezed", id(array), gone), (array,), lambda: array.squeeze(gone))

    def _once(self, key: object, origin: tuple[object, ...], make: object) -> Array:
        if key not in self._by_origin:
            # Ids are keys: what they belong to must not be freed.
            self._alive.append(origin)
            made: Array = make()  # type: ignore[operator]
            content = (made.shape, made.tobytes())
            self._by_origin[key] = self._by_content.setdefault(content, made)
        return self._by_origin[key]
