"""Enumerates the downsets of an order, and sums over them.

A downset contains all groups that precede its members.  Neighbours in the lattice of downsets differ by
one group.  Downsets are numbered by size: 0 is the empty one, the last one is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.lattice.exact import Array
from autopar.pipeline.planner.lattice.order import Ints, Order
from autopar.utils.compiled import compiled, inlined

Words = NDArray[np.uint64]
Small = NDArray[np.int32]
BITS = 64
EDGES = 32
"""Lower neighbours per downset for which there is room; it is the mean width of the order at most."""
AT_ONCE = 2**21
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


def lattice_of(order: Order, most: int, most_edges: int | None = None) -> Lattice | None:
    """Return all downsets of the order, or None if there are more than `most`.

    At most `most_edges` pairs of neighbours are stored, by default `EDGES` per downset.
    """
    after, next_groups = np.nonzero(order.covers)
    next_first = np.searchsorted(after, np.arange(len(order) + 1))
    needs = packed(order.before.T)
    edges = EDGES * most if most_edges is None else most_edges
    # numpy asks the system for zeros, which takes memory only where something is written.
    words = np.zeros((most + 1, needs.shape[1]), np.uint64)
    first = np.zeros(most + 1, np.int64)
    upper, group = np.zeros(edges, np.int32), np.zeros(edges, np.int32)
    table = np.zeros(1 << (4 * most).bit_length(), np.int32)
    count = _grow(
        needs,
        next_first,
        next_groups,
        words,
        np.zeros(words.shape, np.uint64),
        table,
        first,
        upper,
        group,
    )
    if count < 0:
        return None
    return _turned(order, words[:count].copy(), first[: count + 1], upper, group)


def _turned(order: Order, words: Words, first: Ints, upper: Small, group: Small) -> Lattice:
    """Return the lattice with edges to lower neighbours, of edges to upper ones."""
    count = len(words)
    upper, group = upper[: first[-1]], group[: first[-1]]
    lower = np.repeat(np.arange(count, dtype=np.int32), np.diff(first))
    sequence = np.argsort(upper, kind="stable")
    starts = np.searchsorted(upper[sequence], np.arange(count + 1))
    return Lattice(order, words, starts.astype(np.int64), lower[sequence], group[sequence])


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


@inlined
def _hash(words: Words, row: int) -> np.uint64:
    """Mix the words of a set (the finaliser of MurmurHash3)."""
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for word in range(words.shape[1]):
        mixed = (mixed ^ words[row, word]) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(0xC4CEB9FE1A85EC53)
        mixed ^= mixed >> np.uint64(29)
    return mixed


@inlined
def _slot(table: Small, words: Words, wanted: int) -> int:
    """Return the place of a set in a hash table of rows plus 1: its own, or the 0 where it belongs."""
    mask = np.uint64(len(table) - 1)
    slot = _hash(words, wanted) & mask
    while table[slot] > 0:
        differing = np.uint64(0)
        for word in range(words.shape[1]):
            differing |= words[table[slot] - 1, word] ^ words[wanted, word]
        if differing == 0:
            break
        slot = (slot + np.uint64(1)) & mask
    return int(slot)


@inlined
def _is_ready(needs: Words, group: int, words: Words, row: int) -> bool:
    """Whether a set has all groups that precede a group."""
    lacking = np.uint64(0)
    for word in range(words.shape[1]):
        lacking |= needs[group, word] & ~words[row, word]
    return bool(lacking == 0)


@compiled
def _grow(
    needs: Words,
    next_first: Ints,
    next_groups: Ints,
    words: Words,
    ready: Words,
    table: Small,
    upper_first: Ints,
    upper: Small,
    group: Small,
) -> int:
    """Enumerate downsets size by size; return their number, or -1 if they do not fit into the arrays.

    `needs[g]` are the groups before group g, and those that follow it at once start at `next_first[g]`
    of `next_groups`.  `ready[d]` are the groups that can be added to downset d.  The row after the
    last downset is a draft.
    """
    count, width = needs.shape
    found, edges = 1, 0
    for g in range(count):
        if _is_ready(needs, g, words, 0):
            ready[0, g >> 6] |= np.uint64(1) << np.uint64(g & 63)
    here = 0
    while here < found:
        for g in range(count):
            bit = np.uint64(1) << np.uint64(g & 63)
            if ready[here, g >> 6] & bit == 0:
                continue
            if edges == len(upper):
                return -1
            for word in range(width):
                words[found, word] = words[here, word]
            words[found, g >> 6] |= bit
            slot = _slot(table, words, found)
            if table[slot] == 0:
                if found == len(words) - 1:
                    return -1
                for word in range(width):
                    ready[found, word] = ready[here, word]
                ready[found, g >> 6] &= ~bit
                for at in range(next_first[g], next_first[g + 1]):
                    h = next_groups[at]
                    if _is_ready(needs, h, words, found):
                        ready[found, h >> 6] |= np.uint64(1) << np.uint64(h & 63)
                found += 1
                table[slot] = found
            upper[edges] = table[slot] - 1
            group[edges] = g
            edges += 1
        here += 1
        upper_first[here] = edges
    return found
