"""A `Problem` made ready for solving: whole numbers of ticks, and equal tables only once.

Seconds are counted in picoseconds, or coarser where there are very many.  Sums of whole numbers below
2^53 are exact in float64, whatever their order, so solvers agree to the last digit and a tie is a tie.
Arrays of equal content are one object: what was computed for one layer of a model is found again for
the next (see `elimination`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autopar.problem import Array, Factor, Problem

FINEST_S = 1e-12
FEW = float(2**20)
"""So many ticks at least tell costs apart."""
MOST = float(2**53)
"""Ticks that float64 counts exactly: two and a half hours of picoseconds."""
UNCOVERED = 3
"""Place of the uncovered ticks among a table's arrays."""
Arrays = tuple[Array, Array, Array, Array]
Prices = tuple[float, float, float, float]
"""Of a tick, a byte that rests, a byte that is kept, and an uncovered tick; see `Table.arrays`."""


@dataclass(frozen=True, eq=False)
class Table:
    """What is added up over the states of some variables.

    `arrays`: ticks, bytes that rest, bytes that are kept per microbatch, uncovered ticks.
    """

    scope: tuple[int, ...]
    arrays: Arrays


@dataclass(frozen=True, eq=False)
class _Alike:
    """Tables of equal content: which they are, and their scopes, [dims, tables]."""

    tables: NDArray[np.intp]
    scopes: NDArray[np.intp]
    arrays: Arrays

    @classmethod
    def of(cls, tables: Sequence[Table], numbers: Sequence[int]) -> _Alike:
        scopes = np.array([tables[number].scope for number in numbers], dtype=np.intp)
        return cls(np.array(numbers), scopes.reshape(len(numbers), -1).T, tables[numbers[0]].arrays)


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
        tables = tuple(Table(t.scope, shared.rounded(t)) for t in problem.tables)
        return cls(tuple(variable.size for variable in problem.variables), tables, tick_s)

    def sums(self, states: Sequence[int]) -> Array:
        """Ticks, resting bytes, kept bytes and uncovered ticks of one assignment."""
        total: Array = self.entries(states).sum(axis=0)
        return total

    def entries(self, states: Sequence[int]) -> Array:
        """What each table adds to the sums, [tables, 4]."""
        chosen = np.asarray(states, dtype=np.intp)
        found = np.empty((len(self.tables), 4))
        for alike in self._alike:
            at = tuple(chosen[alike.scopes])
            for place, array in enumerate(alike.arrays):
                found[alike.tables, place] = array[at]
        return found

    @cached_property
    def _alike(self) -> tuple[_Alike, ...]:
        groups: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, table in enumerate(self.tables):
            groups[tuple(map(id, table.arrays))].append(number)
        return tuple(_Alike.of(self.tables, numbers) for numbers in groups.values())

    @property
    def hides(self) -> bool:
        """Whether anything may be covered at all."""
        uncovered = {id(t.arrays[UNCOVERED]): t.arrays[UNCOVERED] for t in self.tables}
        return any(array.any() for array in uncovered.values())

    def without(self, decided: Sequence[int]) -> Network:
        """The network over the other variables; these have one state each and leave constants."""
        gone = set(decided)
        left = [index for index in range(len(self.sizes)) if index not in gone]
        number = {index: place for place, index in enumerate(left)}
        shared = Shared(self.tick_s)
        tables = tuple(
            Table(
                tuple(number[i] for i in table.scope if i in number),
                shared.squeezed(table.arrays, [i in number for i in table.scope]),
            )
            for table in self.tables
        )
        return Network(tuple(self.sizes[index] for index in left), tables, self.tick_s)

    def restricted(self, kept: Sequence[NDArray[np.intp]]) -> Network:
        """The network over these states of each variable."""
        shared = Shared(self.tick_s)
        tables = tuple(
            Table(table.scope, shared.selected(table.arrays, [kept[i] for i in table.scope]))
            for table in self.tables
        )
        return Network(tuple(len(states) for states in kept), tables, self.tick_s)


def _tick_s(problem: Problem) -> float:
    """A picosecond, or the least multiple of it in which the largest possible sum is exact.

    Where all costs together are hardly more than a picosecond, a part of one.
    """
    seconds = [table.seconds for table in problem.tables]
    tables = [*seconds, *(t.uncovered for t in problem.tables if t.uncovered is not None)]
    largest = {id(t): float(np.abs(t[np.isfinite(t)]).max(initial=0.0)) for t in tables}
    total = sum(largest[id(table)] for table in tables)
    coarser = math.ceil(math.log2(max(total / (MOST * FINEST_S), 1.0)))
    finer = math.floor(math.log2(min(total / (FEW * FINEST_S), 1.0))) if total else 0
    return FINEST_S * 2.0 ** (coarser + finer)


@dataclass
class Shared:
    """Gives equal arrays as one object."""

    tick_s: float
    _by_content: dict[object, Array] = field(default_factory=dict)
    _by_origin: dict[object, Array] = field(default_factory=dict)
    _alive: list[object] = field(default_factory=list)

    def rounded(self, factor: Factor) -> Arrays:
        """Seconds as whole ticks, bytes as whole numbers, rounded up."""
        shape = factor.seconds.shape
        return (
            self._ticks(factor.seconds, shape),
            self._whole(factor.nbytes, shape),
            self._whole(factor.kept, shape),
            self._ticks(factor.uncovered, shape),
        )

    def selected(self, arrays: Arrays, kept: Iterable[NDArray[np.intp]]) -> Arrays:
        """The entries of these states."""
        states = tuple(kept)
        if arrays[0].shape == tuple(map(len, states)):
            return arrays
        at = np.ix_(*states)
        key = ("selected", *map(id, states))
        return _four(
            self._once((*key, id(array)), (array, *states), lambda array=array: array[at])
            for array in arrays
        )

    def squeezed(self, arrays: Arrays, is_left: Sequence[bool]) -> Arrays:
        """Without the dims (of size one) that are not left."""
        if all(is_left):
            return arrays
        gone = tuple(place for place, stays in enumerate(is_left) if not stays)
        return _four(
            self._once(("squeezed", id(a), gone), (a,), lambda a=a: a.squeeze(gone)) for a in arrays
        )

    def _ticks(self, seconds: Array | None, shape: tuple[int, ...]) -> Array:
        if seconds is None:
            return self._zeros(shape)
        return self._once(
            ("ticks", id(seconds)), (seconds,), lambda: np.rint(seconds / self.tick_s)
        )

    def _whole(self, nbytes: Array | None, shape: tuple[int, ...]) -> Array:
        if nbytes is None:
            return self._zeros(shape)
        return self._once(("nbytes", id(nbytes)), (nbytes,), lambda: np.ceil(nbytes))

    def _zeros(self, shape: tuple[int, ...]) -> Array:
        return self._once(("zeros", shape), (), lambda: np.zeros(shape))

    def _once(self, key: object, origin: tuple[object, ...], make: object) -> Array:
        if key not in self._by_origin:
            # Ids are keys: what they belong to must not be freed.
            self._alive.append(origin)
            made: Array = make()  # type: ignore[operator]
            content = (made.shape, made.tobytes())
            self._by_origin[key] = self._by_content.setdefault(content, made)
        return self._by_origin[key]


def _four(arrays: Iterator[Array]) -> Arrays:
    ticks, nbytes, kept, uncovered = arrays
    return ticks, nbytes, kept, uncovered
