"""Exact moves over large parts: the best states of an induced forest, everything else fixed.

A random set of variables whose tables form no circle is solved by dynamic programming, with bytes at
their prices.  What changes falls apart into components that share no table; each is taken if the
bytes stay within their limits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autopar.solver.anytime.tables import Array, Index, Tables
from autopar.utils.compiled import compiled


@compiled
def _root(of: Index, i: int) -> int:
    while of[i] != i:
        of[i] = of[of[i]]
        i = of[i]
    return i


@compiled
def draw(t: Tables, candidates: Index, inside: NDArray[np.bool_]) -> None:
    """Take candidates in their order, unless one would close a circle."""
    root = np.arange(len(t.size))
    seen = np.full(len(t.size), -1)
    for i in candidates:
        closes = False
        for link in range(t.link_at[i], t.link_at[i + 1]):
            j = t.link_other[link]
            if inside[j]:
                r = _root(root, j)
                if seen[r] == i:
                    closes = True
                    break
                seen[r] = i
        if not closes:
            inside[i] = True
            for link in range(t.link_at[i], t.link_at[i + 1]):
                if inside[t.link_other[link]]:
                    root[_root(root, t.link_other[link])] = i


@compiled
def rooted(t: Tables, inside: NDArray[np.bool_], up: Index) -> Index:
    """Return the variables of the forest, each after its parent; `up` gets the link to it, or -1."""
    count = 0
    order = np.empty(inside.sum(), dtype=np.int64)
    known = np.zeros(len(t.size), dtype=np.bool_)
    for start in range(len(t.size)):
        if not inside[start] or known[start]:
            continue
        known[start] = True
        up[start] = -1
        order[count] = start
        at = count
        count += 1
        while at < count:
            i = order[at]
            at += 1
            for link in range(t.link_at[i], t.link_at[i + 1]):
                j = t.link_other[link]
                if inside[j] and not known[j]:
                    known[j] = True
                    order[count] = j
                    count += 1
                    for back in range(t.link_at[j], t.link_at[j + 1]):
                        if t.link_pair[back] == t.link_pair[link]:
                            up[j] = back
    return order


@compiled
def entry(t: Tables, i: int, link: int, s: int, other: int) -> float:
    """The cost of a pair by a link of i: i at state s, the other side at state `other`."""
    pair, j = t.link_pair[link], t.link_other[link]
    if t.left[pair] == i:
        return t.table[t.table_at[pair] + s * t.size[j] + other]
    return t.table[t.table_at[pair] + other * t.size[i] + s]


@compiled
def best_on_forest(
    t: Tables, priced: Array, states: Index, order: Index, up: Index,
    inside: NDArray[np.bool_], sums: Array, found: Index,
) -> None:
    """Set `found` to the least-cost states of the forest, given those of the rest in `states`."""
    for i in order:
        f, k = t.first[i], t.size[i]
        sums[f : f + k] = priced[f : f + k]
        for link in range(t.link_at[i], t.link_at[i + 1]):
            j = t.link_other[link]
            if not inside[j]:
                pair = t.link_pair[link]
                at = t.table_at[pair]
                if t.left[pair] == i:
                    for s in range(k):
                        sums[f + s] += t.table[at + s * t.size[j] + states[j]]
                else:
                    at += states[j] * k
                    for s in range(k):
                        sums[f + s] += t.table[at + s]
    for step in range(len(order) - 1, -1, -1):
        i = order[step]
        if up[i] >= 0:
            _lift(t, i, up[i], sums)
    for i in order:
        f, link = t.first[i], up[i]
        best, least = 0, np.inf
        for s in range(t.size[i]):
            value = sums[f + s]
            if link >= 0:
                value += entry(t, i, link, s, found[t.link_other[link]])
            if value < least:
                best, least = s, value
        found[i] = best


@compiled
def _lift(t: Tables, i: int, link: int, sums: Array) -> None:
    """Add the least of a child's sums, by the parent's state, to those of the parent."""
    pair, p = t.link_pair[link], t.link_other[link]
    f, k, fp, kp, at = t.first[i], t.size[i], t.first[p], t.size[p], t.table_at[pair]
    if t.left[pair] == p:
        for a in range(kp):
            line = t.table[at + a * k : at + (a + 1) * k]
            least = np.inf
            for s in range(k):
                value = line[s] + sums[f + s]
                if value < least:
                    least = value
            sums[fp + a] += least
    else:
        out = np.full(kp, np.inf)
        for s in range(k):
            base = sums[f + s]
            line = t.table[at + s * kp : at + (s + 1) * kp]
            for a in range(kp):
                value = line[a] + base
                if value < out[a]:
                    out[a] = value
        for a in range(kp):
            sums[fp + a] += out[a]


@compiled
def components(
    t: Tables, priced: Array, states: Index, found: Index, order: Index, up: Index,
    part: Index, gains: Array,
) -> int:
    """Number the connected parts of what changes; `gains` gets what each adds to the priced cost."""
    count = 0
    for i in order:
        part[i] = -1
        link = up[i]
        p = t.link_other[link] if link >= 0 else -1
        changed, above = found[i] != states[i], p >= 0 and part[p] >= 0
        if changed:
            if above:
                part[i] = part[p]
            else:
                part[i] = count
                gains[count] = 0.0
                count += 1
            f = t.first[i]
            gains[part[i]] += priced[f + found[i]] - priced[f + states[i]]
        if link >= 0 and (changed or above):
            now = entry(t, i, link, states[i], states[p])
            then = entry(t, i, link, found[i], found[p])
            gains[part[i] if changed else part[p]] += then - now
    return count


@compiled
def add_outside(
    t: Tables, states: Index, found: Index, order: Index,
    inside: NDArray[np.bool_], part: Index, gains: Array,
) -> None:
    """Add to `gains` what changes in the tables shared with variables outside of the forest."""
    for i in order:
        if part[i] < 0:
            continue
        for link in range(t.link_at[i], t.link_at[i + 1]):
            j = t.link_other[link]
            if not inside[j]:
                gains[part[i]] += entry(t, i, link, found[i], states[j])
                gains[part[i]] -= entry(t, i, link, states[i], states[j])


@compiled
def shift(t: Tables, i: int, before: int, after: int, course: Array) -> None:
    """Change the bytes in use over time as variable i goes from one state to another."""
    for span in range(t.span_at[i], t.span_at[i + 1]):
        at = t.nbytes_at[span]
        more = t.nbytes[at + after] - t.nbytes[at + before]
        if more != 0.0:
            for time in range(t.span_start[span], t.span_stop[span]):
                course[time] += more


@compiled
def exceeds(t: Tables, i: int, before: int, after: int, course: Array, most: Array) -> bool:
    """Whether the bytes are above `most` at a time when variable i now needs more than before."""
    for span in range(t.span_at[i], t.span_at[i + 1]):
        at = t.nbytes_at[span]
        if t.nbytes[at + after] > t.nbytes[at + before]:
            for time in range(t.span_start[span], t.span_stop[span]):
                if course[time] > most[time]:
                    return True
    return False


@compiled
def take(
    t: Tables, states: Index, found: Index, order: Index, part: Index, gains: Array, count: int,
    course: Array, most: Array, worst: float,
) -> int:
    """Take the components in the order of their gains, as far as bytes allow; return how many.

    A component is left out if it adds more than `worst` to the priced cost.
    """
    start = np.zeros(count + 1, dtype=np.int64)
    for i in order:
        if part[i] >= 0:
            start[part[i] + 1] += 1
    for c in range(count):
        start[c + 1] += start[c]
    members = np.empty(start[count], dtype=np.int64)
    free = start[:-1].copy()
    for i in order:
        if part[i] >= 0:
            members[free[part[i]]] = i
            free[part[i]] += 1
    taken = 0
    for c in np.argsort(gains[:count], kind="mergesort"):
        if gains[c] > worst:
            break
        here = members[start[c] : start[c + 1]]
        for i in here:
            shift(t, i, states[i], found[i], course)
        bad = False
        for i in here:
            if exceeds(t, i, states[i], found[i], course, most):
                bad = True
                break
        if bad:
            for i in here:
                shift(t, i, found[i], states[i], course)
        else:
            taken += 1
            for i in here:
                states[i] = found[i]
    return taken


@compiled
def forest_move(
    t: Tables, priced: Array, states: Index, candidates: Index, course: Array, most: Array,
    noise: float, seed: int, wanted: Index,
) -> int:
    """Solve a forest drawn from the candidates, and take what fits; return how many components.

    `wanted` is set to the assignment with all of them.  `noise` is the spread of what is added to
    each state's cost at random, so that equal and nearly equal answers take turns.
    """
    inside = np.zeros(len(t.size), dtype=np.bool_)
    up, part = np.empty(len(t.size), dtype=np.int64), np.full(len(t.size), -1)
    draw(t, candidates, inside)
    order = rooted(t, inside, up)
    disturbed = priced
    if noise > 0.0:
        np.random.seed(seed)
        disturbed = priced.copy()
        for i in order:
            for place in range(t.first[i], t.first[i + 1]):
                disturbed[place] -= noise * np.log(np.random.random() + 1e-12)
    wanted[:] = states
    best_on_forest(t, disturbed, states, order, up, inside, np.empty(len(priced)), wanted)
    gains = np.empty(len(order))
    count = components(t, priced, states, wanted, order, up, part, gains)
    add_outside(t, states, wanted, order, inside, part, gains)
    worst = noise * 3.0
    return take(t, states, wanted, order, part, gains, count, course, most, worst)
