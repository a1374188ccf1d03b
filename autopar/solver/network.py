"""A `Problem` made ready for solving: whole numbers of ticks, and equal tables only once.

Seconds are counted in picoseconds, or coarser where there are very many.  Sums of whole numbers below
2^53 are exact in float64, whatever their order, so solvers agree to the last digit and a tie is a tie.
Arrays of equal content are one object: what was computed for one layer of a model is found again for
the next (see `elimination`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopar.solver.problem import SUMS, Array, Factor, Limit, Load, Problem
from autopar.solver.table_groups import TableGroup, grouped, merged

FINEST_S = 1e-12
FEW = float(2**20)
"""So many ticks at least tell costs apart."""
MOST = float(2**53)
"""Ticks that float64 counts exactly: two and a half hours of picoseconds."""
UNCOVERED = -1
"""Place of the uncovered ticks among a table's arrays."""
Arrays = tuple[Array, ...]
"""Ticks, bytes of each load, and uncovered ticks."""
_Flat = tuple[
    NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], list[tuple[int, NDArray[np.float64]]]
]
"""Numbers and scopes of equal tables, the strides of their dims, and their arrays by place."""
Prices = tuple[float, ...]
"""Of a tick, of a byte of each load, and of an uncovered tick."""


@dataclass(frozen=True, eq=False)
class Table:
    """What is added up over the states of some variables."""

    scope: tuple[int, ...]
    arrays: Arrays


@dataclass(frozen=True, eq=False)
class Network:
    """Variables by number of states, and the tables whose sum is the objective."""

    sizes: tuple[int, ...]
    alike: tuple[TableGroup[Arrays], ...]
    """The tables, those of equal content together."""
    tick_s: float
    loads: tuple[Load, ...] = SUMS
    """What is added up of bytes."""

    @classmethod
    def of(cls, problem: Problem, loads: tuple[Load, ...] = SUMS) -> Network:
        """Round a problem to ticks; of its bytes, only these loads matter."""
        tick_s = _tick_s(problem)
        shared = Shared(tick_s)
        alike = problem.alike if loads == SUMS else _alike_under(loads, problem)
        rounded = ((a, shared.rounded(a.content, loads)) for a in alike)
        sizes = tuple(variable.size for variable in problem.variables)
        return cls(sizes, _merged(rounded), tick_s, loads)

    @property
    def free(self) -> Prices:
        """Ticks cost what they are, all else nothing."""
        return (1.0, *(0.0 for _ in self.loads), 0.0)

    def weights(self, limit: Limit) -> tuple[float, ...]:
        """How often a limit counts each load."""
        if limit.load in self.loads:
            return tuple(float(load == limit.load) for load in self.loads)
        assert limit.time is None and self.loads == SUMS
        return 1.0, limit.in_flight

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """One by one, in the order in which they were given."""
        found = {
            number: Table(scope, alike.content)
            for alike in self.alike
            for number, scope in zip(alike.numbers.tolist(), _rows(alike.scopes), strict=True)
        }
        return tuple(found[number] for number in sorted(found))

    def sums(self, states: Sequence[int]) -> Array:
        """Ticks, bytes of each load, and uncovered ticks of one assignment."""
        total: Array = self.entries(states).sum(axis=0)
        return total

    def entries(self, states: Sequence[int]) -> Array:
        """What each table adds to the sums, [tables, sums]."""
        chosen = np.asarray(states, dtype=np.intp)
        found = np.zeros((sum(len(alike.numbers) for alike in self.alike), len(self.free)))
        for numbers, scopes, strides, columns in self._flat:
            at = strides @ chosen[scopes]
            for place, column in columns:
                found[numbers, place] = column[at]
        return found

    @cached_property
    def _flat(self) -> list[_Flat]:
        """The tables row by row, without arrays that are all zero."""
        return [
            (
                alike.numbers,
                alike.scopes,
                np.cumprod((1, *alike.content[0].shape[:0:-1]))[::-1][: alike.content[0].ndim],
                [(i, array.reshape(-1)) for i, array in enumerate(alike.content) if array.any()],
            )
            for alike in self.alike
        ]

    @property
    def hides(self) -> bool:
        """Whether anything may be covered at all."""
        return any(alike.content[UNCOVERED].any() for alike in self.alike)

    def amounts_of(self, variable: int) -> Array:
        """All but ticks that tables over this variable alone add, by its states: [states, sums]."""
        total = np.zeros((self.sizes[variable], len(self.free) - 1))
        for alike in self.alike:
            count = np.count_nonzero(alike.scopes == variable)
            if len(alike.scopes) == 1 and count:
                total += count * np.stack(alike.content[1:], axis=1)
        return total

    def open(self) -> Network:
        """The network over the variables that have a choice; the others leave constants."""
        number = np.cumsum([size > 1 for size in self.sizes]) - 1
        shared = Shared(self.tick_s)

        def squeezed(alike: TableGroup[Arrays]) -> tuple[TableGroup[Arrays], Arrays]:
            left = np.array([size > 1 for size in alike.content[0].shape], dtype=bool)
            scopes = number[alike.scopes[left]].reshape(-1, len(alike.numbers))
            return replace(alike, scopes=scopes), shared.squeezed(alike.content)

        sizes = tuple(size for size in self.sizes if size > 1)
        return replace(self, sizes=sizes, alike=_merged(map(squeezed, self.alike)))

    def restricted(self, kept: Sequence[NDArray[np.intp]]) -> Network:
        """The network over these states of each variable."""
        kinds: dict[bytes, int] = {}
        kind = np.array([kinds.setdefault(states.tobytes(), len(kinds)) for states in kept])
        shared = Shared(self.tick_s)

        def selected(alike: TableGroup[Arrays]) -> Iterator[tuple[TableGroup[Arrays], Arrays]]:
            for part in _parted(alike, kind):
                states = tuple(kept[index] for index in part.scopes[:, 0])
                yield part, shared.selected(part.content, states)

        parts = itertools.chain.from_iterable(map(selected, self.alike))
        return replace(self, sizes=tuple(map(len, kept)), alike=_merged(parts))


def _alike_under(loads: Sequence[Load], problem: Problem) -> tuple[TableGroup[Factor], ...]:
    """The tables, grouped by identity of the arrays that these loads count."""

    def key(table: Factor) -> tuple[object, ...]:
        counted = (tuple((w, id(a)) for w, a in load.parts(table)) for load in loads)
        return id(table.seconds), id(table.uncovered), *counted

    return grouped((key(table), table, table.scope) for table in problem.tables)


def _merged(
    parts: Iterable[tuple[TableGroup[Any], Arrays]],
) -> tuple[TableGroup[Arrays], ...]:
    """Parts with their new contents, equal ones together."""
    return merged(
        (tuple(map(id, arrays)), TableGroup(arrays, part.numbers, part.scopes))
        for part, arrays in parts
    )


def _parted(alike: TableGroup[Arrays], kind: NDArray[np.intp]) -> Iterator[TableGroup[Arrays]]:
    """The tables of each combination of kinds of their variables."""
    if not len(alike.scopes):
        yield alike
        return
    # One number says all kinds of a scope; again a small one after each, so that none overflows.
    which = kind[alike.scopes[0]]
    for row in alike.scopes[1:]:
        _, which = np.unique(which * (1 + int(kind.max())) + kind[row], return_inverse=True)
    for part in np.unique(which).tolist():
        chosen = which == part
        yield TableGroup(alike.content, alike.numbers[chosen], alike.scopes[:, chosen])


def _rows(scopes: NDArray[np.intp]) -> list[tuple[int, ...]]:
    return list(map(tuple, scopes.T.tolist()))


def _tick_s(problem: Problem) -> float:
    """A picosecond, or the least multiple of it in which the largest possible sum is exact.

    Where all costs together are hardly more than a picosecond, a part of one.
    """
    total = sum(
        len(alike.numbers) * (_largest(alike.content.seconds) + _largest(alike.content.uncovered))
        for alike in problem.alike
    )
    coarser = math.ceil(math.log2(max(total / (MOST * FINEST_S), 1.0)))
    finer = math.floor(math.log2(min(total / (FEW * FINEST_S), 1.0))) if total else 0
    return FINEST_S * 2.0 ** (coarser + finer)


def _largest(seconds: Array | None) -> float:
    if seconds is None:
        return 0.0
    return float(np.abs(seconds[np.isfinite(seconds)]).max(initial=0.0))


@dataclass
class Shared:
    """Gives equal arrays as one object."""

    tick_s: float
    _by_content: dict[object, Array] = field(default_factory=dict)
    _by_origin: dict[object, Array] = field(default_factory=dict)
    _alive: list[object] = field(default_factory=list)

    def rounded(self, factor: Factor, loads: Sequence[Load]) -> Arrays:
        """Seconds as whole ticks, bytes as whole numbers, rounded up."""
        shape = factor.seconds.shape
        return (
            self._ticks(factor.seconds, shape),
            *(self._whole(load.parts(factor), shape) for load in loads),
            self._ticks(factor.uncovered, shape),
        )

    def selected(self, arrays: Arrays, kept: Iterable[NDArray[np.intp]]) -> Arrays:
        """The entries of these states."""
        states = tuple(kept)
        if arrays[0].shape == tuple(map(len, states)):
            return arrays
        at = np.ix_(*states)
        key = ("selected", *map(id, states))
        return tuple(
            self._once((*key, id(array)), (array, *states), lambda array=array: array[at])
            for array in arrays
        )

    def squeezed(self, arrays: Arrays) -> Arrays:
        """Without the dims of size one."""
        if 1 not in arrays[0].shape:
            return arrays
        return tuple(self._once(("squeezed", id(a)), (a,), lambda a=a: a.squeeze()) for a in arrays)

    def _ticks(self, seconds: Array | None, shape: tuple[int, ...]) -> Array:
        if seconds is None:
            return self._zeros(shape)
        return self._once(
            ("ticks", id(seconds)), (seconds,), lambda: np.rint(seconds / self.tick_s)
        )

    def _whole(self, parts: Sequence[tuple[float, Array]], shape: tuple[int, ...]) -> Array:
        if not parts:
            return self._zeros(shape)
        key = ("nbytes", *((weight, id(nbytes)) for weight, nbytes in parts))
        made = (weight * nbytes for weight, nbytes in parts)
        return self._once(key, tuple(parts), lambda: np.ceil(sum(made)))

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
