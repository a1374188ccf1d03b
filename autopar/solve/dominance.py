"""States that can never be needed: dead-end elimination (Goldstein 1994).

State i of a variable is *dominated* by j if, whatever all other variables do, j costs no more:

    u[j] - u[i]  +  sum over its tables of  max over the others' states of (T[j] - T[i])   <=   0

in ticks, in bytes of either kind, and in ticks with all uncovered ones.  Of states that dominate each
other the first is kept.  Removing dominated states is safe for every limit on bytes, every price of a
byte, and however much is covered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.problem import Array
from autopar.solve.network import MOST, Network, Table

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
    decided = [index for index, size in enumerate(network.sizes) if size == 1]
    open_ = tuple(index for index, size in enumerate(network.sizes) if size > 1)
    return Reduced(network.without(decided), open_, tuple(kept))


class _Round:
    """One pass over all variables; equal ones are looked at once."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._of: defaultdict[int, list[tuple[Table, int]]] = defaultdict(list)
        for table in network.tables:
            for place, index in enumerate(table.scope):
                self._of[index].append((table, place))
        self._worst: dict[tuple[int, int], Array] = {}
        self._kept: dict[object, States] = {}

    def kept(self) -> list[States]:
        """The states that are left of each variable; one object for equal variables."""
        return [self._of_variable(index) for index in range(len(self._network.sizes))]

    def _of_variable(self, index: int) -> States:
        size = self._network.sizes[index]
        key = (
            size,
            *sorted((*map(id, t.arrays), place) for t, place in self._of[index]),
        )
        if key not in self._kept:
            self._kept[key] = self._undominated(size, self._of[index])
        return self._kept[key]

    def _undominated(self, size: int, tables: list[tuple[Table, int]]) -> States:
        if size == 1:
            return np.arange(1)
        more = np.zeros((4, size, size))
        for table, place in tables:
            for total, array in zip(more, table.arrays, strict=True):
                total += self._worst_of(array, place)
        ticks, nbytes, kept, uncovered = more
        dominated_by = (ticks <= 0) & (nbytes <= 0) & (kept <= 0) & (ticks + uncovered <= 0)
        first = np.arange(size)
        equal_and_later = dominated_by & dominated_by.T & (first[None, :] > first[:, None])
        np.fill_diagonal(dominated_by, False)
        return np.flatnonzero(~(dominated_by & ~equal_and_later).any(axis=1))

    def _worst_of(self, array: Array, place: int) -> Array:
        """W[i, j] = max over the others' states of array[j] - array[i], along dim `place`."""
        key = (id(array), place)
        if key not in self._worst:
            if not array.any():
                self._worst[key] = np.zeros((1, 1))
                return self._worst[key]
            rows = np.moveaxis(array, place, 0).reshape(array.shape[place], -1)
            unique, which = np.unique(rows, axis=0, return_inverse=True)
            self._worst[key] = _largest_differences(unique)[np.ix_(which.ravel(), which.ravel())]
        return self._worst[key]


def _largest_differences(rows: Array) -> Array:
    """max over columns of rows[j] - rows[i]; where row i is forbidden, j is no worse."""
    count, columns = rows.shape
    found = np.empty((count, count))
    at_once = max(1, CHUNK // max(1, count * columns))
    for start in range(0, count, at_once):
        mine = rows[start : start + at_once, None, :]
        with np.errstate(invalid="ignore"):
            difference = rows[None, :, :] - mine
        difference[np.broadcast_to(np.isposinf(mine), difference.shape)] = -np.inf
        found[start : start + at_once] = difference.max(axis=2)
    # A finite stand-in for minus infinity, which must not meet a plus infinity in a sum.
    return np.maximum(found, -MOST)
