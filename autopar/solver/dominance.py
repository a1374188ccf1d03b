"""States that can never be needed: dead-end elimination (Goldstein 1994).

State i of a variable is *dominated* by j if, whatever all other variables do, j costs no more:

    u[j] - u[i]  +  sum over its tables of  max over the others' states of (T[j] - T[i])   <=   0

in ticks, in bytes of each load, and in ticks with all uncovered ones.  Of states that dominate each
other the first is kept.  Removing dominated states is safe for every limit on bytes, every price of a
byte, and however much is covered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autopar.solver.network import MOST, UNCOVERED, Arrays, Network
from autopar.solver.problem import Array

States = NDArray[np.intp]
ROUNDS = 4
"""What was removed from one variable may free its neighbours; more rounds find little."""
CHUNK = 1 << 22
"""Entries of a temporary array."""


@dataclass(frozen=True, eq=False)
class Reduced:
    """What is left to decide: the variables that still have a choice, and their states."""

    network: Network
    undecided: tuple[int, ...]
    """The variables of the original network that are left, in order."""
    kept: tuple[States, ...]
    """By original variable: the states that are left."""

    def whole(self, states: Sequence[int]) -> tuple[int, ...]:
        """The states of all original variables."""
        chosen = [0] * len(self.kept)
        for index, state in zip(self.undecided, states, strict=True):
            chosen[index] = state
        return tuple(int(kept[state]) for kept, state in zip(self.kept, chosen, strict=True))

    def then(self, states: Sequence[States], inner: Reduced) -> Reduced:
        """The same, with only these states of what is undecided, of which `inner` is left."""
        kept = list(self.kept)
        for place, index in enumerate(self.undecided):
            kept[index] = kept[index][states[place]][inner.kept[place]]
        left = tuple(self.undecided[place] for place in inner.undecided)
        return Reduced(inner.network, left, tuple(kept))


def reduced(network: Network) -> Reduced:
    """The network without dominated states and without variables that have only one."""
    kept = [np.arange(size) for size in network.sizes]
    for _ in range(ROUNDS):
        found = _Round(network).kept()
        if all(len(states) == size for states, size in zip(found, network.sizes, strict=True)):
            break
        kept = [before[now] for before, now in zip(kept, found, strict=True)]
        network = network.restricted(found)
    return _without_decided(network, kept)


def undecided(network: Network) -> Reduced:
    """The network without variables that have only one state; all states of the others are left."""
    return _without_decided(network, [np.arange(size) for size in network.sizes])


def _without_decided(network: Network, kept: list[States]) -> Reduced:
    open_ = tuple(index for index, size in enumerate(network.sizes) if size > 1)
    return Reduced(network.open(), open_, tuple(kept))


@dataclass(frozen=True, eq=False)
class _Seen:
    """An array of a table, seen from one of its variables.

    rows    [state, the others' states]
    least   [i, j]: a lower bound of max over the others' states of rows[j] - rows[i], at i's best for
            them.  A conversion's costs obey the triangle inequality, and there it is the maximum itself.
    """

    rows: Array
    least: Array


_Parts = list[tuple[int, _Seen]]
"""What a table adds to some of the sums, by their number."""


class _Round:
    """One pass over all variables; equal ones are looked at once."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._seen: dict[tuple[int, int], _Seen | None] = {}
        """By array and place of the variable; None where all is zero."""

    def kept(self) -> list[States]:
        """The states that are left of each variable; one object for equal variables."""
        known: dict[tuple[int, bytes], States] = {}
        found, sums = [], len(self._network.free)
        for size, roles in zip(self._network.sizes, self._roles(), strict=True):
            key = size, roles.tobytes()
            if key not in known:
                known[key] = _undominated(size, sums, map(self._parts_of, roles.tolist()))
            found.append(known[key])
        return found

    @cached_property
    def _tables(self) -> list[tuple[Arrays, int]]:
        """What a variable may be part of: a content, and its place in the scope."""
        alike = self._network.alike
        return [(each.content, place) for each in alike for place in range(len(each.scopes))]

    def _roles(self) -> list[States]:
        """By variable: numbers of `_tables`, in order, one for each table that mentions it."""
        scopes = [row for alike in self._network.alike for row in alike.scopes]
        variables = np.concatenate([np.empty(0, dtype=np.intp), *scopes])
        roles = np.repeat(np.arange(len(scopes)), [len(row) for row in scopes])
        order = np.argsort(variables, kind="stable")
        starts = np.searchsorted(variables[order], np.arange(1, len(self._network.sizes)))
        return np.split(roles[order], starts)[: len(self._network.sizes)]

    def _parts_of(self, role: int) -> _Parts:
        arrays, place = self._tables[role]
        every = ((number, self._at(array, place)) for number, array in enumerate(arrays))
        return [(number, seen) for number, seen in every if seen is not None]

    def _at(self, array: Array, place: int) -> _Seen | None:
        key = id(array), place
        if key not in self._seen:
            rows = _by_state(array, place)
            self._seen[key] = _Seen(rows, _differences_at_best(rows)) if rows.any() else None
        return self._seen[key]


def _undominated(size: int, sums: int, tables: Iterable[_Parts]) -> States:
    """The states of a variable that is part of these tables; all bounds first, then what they leave."""
    if size == 1:
        return np.arange(1)
    parts = [part for part in tables if part]
    more = np.zeros((sums, size, size))
    for number, seen in itertools.chain.from_iterable(parts):
        more[number] += seen.least
    open_ = _no_worse(more)
    np.fill_diagonal(open_, False)
    pairs = np.argwhere(open_)
    more = more[:, *pairs.T]
    for table in parts:
        if not len(pairs):
            return np.arange(size)
        for number, seen in table:
            more[number] += _largest_differences(seen.rows, pairs) - seen.least[*pairs.T]
        left = _no_worse(more)
        pairs, more = pairs[left], more[:, left]
    return _kept(size, pairs)


def _by_state(array: Array, place: int) -> Array:
    return np.moveaxis(array, place, 0).reshape(array.shape[place], -1)


def _no_worse(more: Array) -> NDArray[np.bool_]:
    ticks, uncovered = more[0], more[UNCOVERED]
    answer: NDArray[np.bool_] = (more[:UNCOVERED] <= 0).all(axis=0) & (ticks + uncovered <= 0)
    return answer


def _kept(size: int, pairs: NDArray[np.intp]) -> States:
    """The states that none is no worse than; of equal ones the first."""
    dominated_by = np.zeros((size, size), dtype=bool)
    dominated_by[*pairs.T] = True
    equal_and_later = np.triu(dominated_by & dominated_by.T)
    return np.flatnonzero(~(dominated_by & ~equal_and_later).any(axis=1))


def _differences_at_best(rows: Array) -> Array:
    """rows[j] - rows[i] for all i, j, in the column where row i is least."""
    best = rows.argmin(axis=1)
    mine = rows.min(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        found: Array = rows.T[best] - mine
    found[np.isposinf(mine[:, 0])] = -MOST
    return found


def _largest_differences(rows: Array, pairs: NDArray[np.intp]) -> Array:
    """max over columns of rows[j] - rows[i] by pair (i, j); where row i is forbidden, j is no worse."""
    found = np.empty(len(pairs))
    at_once = max(1, CHUNK // rows.shape[1])
    for start in range(0, len(pairs), at_once):
        i, j = pairs[start : start + at_once].T
        mine = rows[i]
        with np.errstate(invalid="ignore"):
            difference = rows[j] - mine
        difference[np.isposinf(mine)] = -np.inf
        found[start : start + at_once] = difference.max(axis=1)
    # A finite stand-in for minus infinity, which must not meet a plus infinity in a sum.
    return np.maximum(found, -MOST)
