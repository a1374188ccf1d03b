"""Enumerates the downsets of an order, and sums over them.

A downset contains all groups that precede its members.  Neighbours in the lattice of downsets differ by
one group.  Downsets are numbered by size: 0 is the empty one, the last one is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.lattice.order import Ints, Order
from autopar.utils.compiled import compiled

Array = NDArray[np.float64]
Words = NDArray[np.uint64]
Small = NDArray[np.int32]
Counts = TypeVar("Counts", Ints, Small)
BITS = 64
AT_ONCE = 2**24
"""Entries of a matrix of downsets by groups that is unpacked at once."""


@dataclass(frozen=True, eq=False)
class Lattice:
    """All downsets of an order, as sets of bits: group g is bit g % 64 of word g // 64.

    Without group `group[e]`, downset d is downset `lower[e]`, for `first[d] <= e < first[d + 1]`.
    """

    order: Order
    words: Words
    first: Ints
    lower: Small
    group: Small

    def __len__(self) -> int:
        return len(self.words)

    def groups(self, start: int, end: int) -> Ints:
        """Return the groups of downset `end` that are not in downset `start`."""
        between = self.words[end] & ~self.words[start]
        return np.flatnonzero(unpacked(between[None], len(self.order))[0]).astype(np.int64)

    def holds(self) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
        """Yield parts of the matrix [downset, group] of what each downset contains."""
        rows = max(1, AT_ONCE // max(1, len(self.order)))
        for start in range(0, len(self), rows):
            part = slice(start, min(start + rows, len(self)))
            yield part, unpacked(self.words[part], len(self.order))

    def sums(self, weights: Array) -> Array:
        """Return [..., downset]: the sums of `weights[..., group]` over each downset."""
        rows = weights.reshape(-1, weights.shape[-1])
        summed = np.empty((len(rows), len(self)))
        for part, holds in self.holds():
            summed[:, part] = rows @ holds.T
        return summed.reshape(*weights.shape[:-1], len(self))


def lattice_of(order: Order, most: int) -> Lattice | None:
    """Return all downsets of the order, or None if there are more than `most`."""
    covers = order.covers
    after, next_groups = np.nonzero(covers)
    next_first = np.searchsorted(after, np.arange(len(order) + 1))
    found = _grow(packed(order.before.T), next_first, next_groups.astype(np.int64), most)
    count, words, upper_first, upper, group = found
    if count < 0:
        return None
    lower_of = np.repeat(np.arange(count, dtype=np.int32), np.diff(upper_first))
    sequence = np.argsort(upper, kind="stable")
    first = np.searchsorted(upper[sequence], np.arange(count + 1))
    return Lattice(order, words, first.astype(np.int64), lower_of[sequence], group[sequence])


def packed(rows: NDArray[np.bool_]) -> Words:
    """Return each row of a matrix of truth values as words of 64 bits."""
    wide = np.zeros((len(rows), -(-max(1, rows.shape[1]) // BITS) * BITS), dtype=bool)
    wide[:, : rows.shape[1]] = rows
    return np.packbits(wide, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def unpacked(words: Words, count: int) -> NDArray[np.bool_]:
    """Return the first `count` bits of each row of words."""
    plain = np.ascontiguousarray(words.astype("<u8")).view(np.uint8)
    bits = np.unpackbits(plain, axis=1, bitorder="little", count=count)
    return bits.view(np.bool_)


@compiled
def _hash(words: Words) -> np.uint64:
    """Mix the words of a set (the finaliser of MurmurHash3)."""
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for word in words:
        mixed = (mixed ^ word) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(0xC4CEB9FE1A85EC53)
        mixed ^= mixed >> np.uint64(29)
    return mixed


@compiled
def _find(table: Small, words: Words, wanted: Words) -> int:
    """Return the slot of a set in a hash table of rows: its own, or the empty one where it belongs."""
    mask = np.uint64(len(table) - 1)
    slot = _hash(wanted) & mask
    while table[slot] >= 0:
        row = table[slot]
        same = True
        for word in range(len(wanted)):
            if words[row, word] != wanted[word]:
                same = False
                break
        if same:
            break
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@compiled
def _grow(
    needs: Words, next_first: Ints, next_groups: Ints, most: int
) -> tuple[int, Words, Ints, Small, Small]:
    """Enumerate downsets size by size; a first count of -1 says that there are more than `most`.

    `needs[g]` are the groups before group g, and its covers are at `next_first[g]` of `next_groups`.
    """
    count, width = needs.shape
    one, full = np.uint64(1), np.uint64(63)
    room = 1024
    words = np.zeros((room, width), np.uint64)
    ready = np.zeros((room, width), np.uint64)
    upper_first = np.zeros(room + 1, np.int64)
    upper = np.empty(room, np.int32)
    group = np.empty(room, np.int32)
    table = np.full(4 * room, -1, np.int32)
    for g in range(count):
        if _is_within(needs, g, words[0]):
            ready[0, g >> 6] |= one << (np.uint64(g) & full)
    table[_find(table, words, words[0])] = 0
    found, edges, here = 1, 0, 0
    larger = np.zeros(width, np.uint64)
    while here < found:
        for g in range(count):
            bit = one << (np.uint64(g) & full)
            if not ready[here, g >> 6] & bit:
                continue
            for word in range(width):
                larger[word] = words[here, word]
            larger[g >> 6] |= bit
            slot = _find(table, words, larger)
            if table[slot] < 0:
                if found == most:
                    return -1, words, upper_first, upper, group
                if found == room:
                    room *= 2
                    words = _widened(words, room)
                    ready = _widened(ready, room)
                    upper_first = _lengthened(upper_first, room + 1)
                    table = np.full(4 * room, -1, np.int32)
                    for row in range(found):
                        table[_find(table, words, words[row])] = row
                    slot = _find(table, words, larger)
                for word in range(width):
                    words[found, word] = larger[word]
                    ready[found, word] = ready[here, word]
                ready[found, g >> 6] &= ~bit
                for at in range(next_first[g], next_first[g + 1]):
                    h = next_groups[at]
                    if _is_within(needs, h, larger):
                        ready[found, h >> 6] |= one << (np.uint64(h) & full)
                table[slot] = found
                found += 1
            if edges == len(upper):
                upper = _lengthened(upper, 2 * edges)
                group = _lengthened(group, 2 * edges)
            upper[edges] = table[slot]
            group[edges] = g
            edges += 1
        here += 1
        upper_first[here] = edges
    return found, words[:found], upper_first[: found + 1], upper[:edges], group[:edges]


@compiled
def _is_within(sets: Words, row: int, other: Words) -> bool:
    """Whether all members of the set in this row are members of the other set."""
    for word in range(len(other)):
        if sets[row, word] & ~other[word]:
            return False
    return True


@compiled
def _widened(rows: Words, room: int) -> Words:
    """Return the rows in an array with room for more."""
    wide = np.zeros((room, rows.shape[1]), rows.dtype)
    for row in range(len(rows)):
        for word in range(rows.shape[1]):
            wide[row, word] = rows[row, word]
    return wide


@compiled
def _lengthened(values: Counts, room: int) -> Counts:
    """Return the values in an array with room for more."""
    long = np.zeros(room, values.dtype)
    for at in range(len(values)):
        long[at] = values[at]
    return long
