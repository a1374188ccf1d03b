"""Drops states that no best assignment needs: unsupported ones, dominated ones, too dear ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autopar.solver.anytime.tables import Tables
from autopar.solver.anytime.timed_problem import Array
from autopar.utils.compiled import compiled

Mask = NDArray[np.bool_]
SEPARABLE, LEFT_TELLS, RIGHT_TELLS = 1, 2, 4
"""Kinds of a pair, as bits: a sum of two lists; one side's state leaves the other a single one."""


@compiled
def supported(t: Tables, alive: Mask) -> None:
    """Keep states of finite cost that each pair allows with a state that is kept (arc consistency)."""
    for place in range(len(alive)):
        if t.cost[place] == np.inf:
            alive[place] = False
    changed = True
    while changed:
        changed = False
        for pair in range(len(t.left)):
            i, j = t.left[pair], t.right[pair]
            fi, fj, at = t.first[i], t.first[j], t.table_at[pair]
            for a in range(t.size[i]):
                if alive[fi + a]:
                    found = False
                    for b in range(t.size[j]):
                        if alive[fj + b] and t.table[at + a * t.size[j] + b] < np.inf:
                            found = True
                            break
                    if not found:
                        alive[fi + a] = False
                        changed = True
            for b in range(t.size[j]):
                if alive[fj + b]:
                    found = False
                    for a in range(t.size[i]):
                        if alive[fi + a] and t.table[at + a * t.size[j] + b] < np.inf:
                            found = True
                            break
                    if not found:
                        alive[fj + b] = False
                        changed = True


@compiled
def _worse_by(t: Tables, alive: Mask, i: int, s: int, r: int, at_most: float) -> float:
    """The most that state s may cost beyond r at the pairs of i; infinite as soon as it is too much."""
    worse = 0.0
    for link in range(t.link_at[i], t.link_at[i + 1]):
        pair, j = t.link_pair[link], t.link_other[link]
        on_left = t.left[pair] == i
        at, step, base = t.table_at[pair], 1, t.size[j]
        if not on_left:
            step, base = t.size[i], 1
        most = -np.inf
        for b in range(t.size[j]):
            if alive[t.first[j] + b]:
                mine, other = t.table[at + s * base + b * step], t.table[at + r * base + b * step]
                if other < np.inf:
                    most = max(most, mine - other)
                    if worse + most > at_most and mine == np.inf:
                        return np.inf
        worse += most
    return worse


@compiled
def undominated(t: Tables, alive: Mask) -> None:
    """Drop states for which another one is no dearer and needs no more bytes, whatever the rest is."""
    for i in range(len(t.size)):
        k, f = t.size[i], t.first[i]
        for r in range(k):
            for s in range(k):
                if not alive[f + r]:
                    break
                if s == r or not alive[f + s]:
                    continue
                fits = True
                for span in range(t.span_at[i], t.span_at[i + 1]):
                    at = t.nbytes_at[span]
                    if t.nbytes[at + s] > t.nbytes[at + r]:
                        fits = False
                        break
                if not fits:
                    continue
                gain = t.cost[f + r] - t.cost[f + s]
                if _worse_by(t, alive, i, s, r, gain) <= gain:
                    alive[f + r] = False


@compiled
def affordable(
    t: Tables, priced: Array, messages: Array, room: float, alive: Mask, table: Array
) -> None:
    """Drop states, and forbid pairs of states, that raise the bound by more than `room`.

    The messages are those after a forward sweep: no pair's least cost is below zero.
    """
    count = len(t.size)
    kept = priced.copy()
    for i in range(count):
        f, k = t.first[i], t.size[i]
        for link in range(t.link_at[i], t.link_at[i + 1]):
            pair, j = t.link_pair[link], t.link_other[link]
            place = t.message_at[pair] if t.left[pair] == i else t.message_at[pair] + t.size[j]
            for s in range(k):
                kept[f + s] += messages[place + s]
        least = np.inf
        for s in range(k):
            least = min(least, kept[f + s])
        for s in range(k):
            kept[f + s] -= least
    total = kept.copy()
    for pair in range(len(t.left)):
        i, j = t.left[pair], t.right[pair]
        rows, columns = t.size[i], t.size[j]
        at, place = t.table_at[pair], t.message_at[pair]
        fi, fj = t.first[i], t.first[j]
        for a in range(rows):
            least = np.inf
            for b in range(columns):
                rest = table[at + a * columns + b]
                if rest == np.inf:
                    continue
                rest -= messages[place + a] + messages[place + rows + b]
                least = min(least, rest)
                if rest + kept[fi + a] + kept[fj + b] > room:
                    table[at + a * columns + b] = np.inf
            total[fi + a] += max(0.0, least)
        for b in range(columns):
            least = np.inf
            for a in range(rows):
                rest = t.table[at + a * columns + b]
                rest -= messages[place + a] + messages[place + rows + b]
                least = min(least, rest)
            total[fj + b] += max(0.0, least)
    for place in range(len(alive)):
        if total[place] > room:
            alive[place] = False


@compiled
def kinds(t: Tables) -> NDArray[np.int64]:
    """The kind of each pair, as a sum of bits."""
    found = np.zeros(len(t.left), dtype=np.int64)
    for pair in range(len(t.left)):
        rows, columns = t.size[t.left[pair]], t.size[t.right[pair]]
        at = t.table_at[pair]
        separable, left_tells = True, True
        in_column = np.zeros(columns, dtype=np.int64)
        scale = 0.0
        for a in range(rows):
            in_row = 0
            for b in range(columns):
                value = t.table[at + a * columns + b]
                if value == np.inf:
                    separable = False
                else:
                    in_row += 1
                    in_column[b] += 1
                    scale = max(scale, abs(value))
            left_tells = left_tells and in_row <= 1
        if separable:
            for a in range(1, rows):
                for b in range(1, columns):
                    rest = t.table[at + a * columns + b] - t.table[at + a * columns]
                    rest -= t.table[at + b] - t.table[at]
                    if abs(rest) > 1e-12 * scale:
                        separable = False
                        break
                if not separable:
                    break
        found[pair] = SEPARABLE * separable + LEFT_TELLS * left_tells
        if columns == 0 or in_column.max() <= 1:
            found[pair] += RIGHT_TELLS
    return found
