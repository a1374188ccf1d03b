"""The best states of an induced forest, everything else fixed: an exact move over a large part.

Of the candidates, a random set whose tables form no circle is solved by dynamic programming, with
bytes at their prices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.solver.anytime.tables import Index, Tables
from autopar.solver.anytime.timed_problem import Array
from autopar.utils.compiled import compiled


class Workspace(NamedTuple):
    """Memory for moves; between them `inside` is false, `seen` -1 and `root` each variable itself.

    `order` lists the forest's variables, each after its parent; `up` has the link to the parent, or
    -1; `found` the new states; `part` the number of the connected part that changes, or -1.
    """

    inside: NDArray[np.bool_]
    seen: Index
    root: Index
    order: Index
    up: Index
    part: Index
    found: Index
    sums: Array
    gains: Array
    dearer: Array


def workspace(t: Tables) -> Workspace:
    """Return memory for moves on a problem."""
    count = len(t.size)
    return Workspace(
        inside=np.zeros(count, dtype=np.bool_),
        seen=np.full(count, -1),
        root=np.arange(count),
        order=np.zeros(count, dtype=np.int64),
        up=np.full(count, -1),
        part=np.full(count, -1),
        found=np.zeros(count, dtype=np.int64),
        sums=np.zeros(len(t.cost)),
        gains=np.zeros(count),
        dearer=np.zeros(count),
    )


@compiled
def _root(of: Index, i: int) -> int:
    while of[i] != i:
        of[i] = of[of[i]]
        i = of[i]
    return i


@compiled
def draw(t: Tables, candidates: Index, w: Workspace) -> None:
    """Put candidates inside in their order, unless one would close a circle."""
    for i in candidates:
        closes = False
        for link in range(t.link_at[i], t.link_at[i + 1]):
            j = t.link_other[link]
            if w.inside[j]:
                r = _root(w.root, j)
                if w.seen[r] == i:
                    closes = True
                    break
                w.seen[r] = i
        if not closes:
            w.inside[i] = True
            for link in range(t.link_at[i], t.link_at[i + 1]):
                if w.inside[t.link_other[link]]:
                    w.root[_root(w.root, t.link_other[link])] = i


@compiled
def rooted(t: Tables, candidates: Index, w: Workspace) -> int:
    """Set order and parents of the forest; return how many variables it has."""
    for i in candidates:
        w.seen[i] = -1
        w.root[i] = i
    count = 0
    for start in candidates:
        if not w.inside[start] or w.seen[start] >= 0:
            continue
        w.seen[start] = 0
        w.up[start] = -1
        w.order[count] = start
        at = count
        count += 1
        while at < count:
            i = w.order[at]
            at += 1
            for link in range(t.link_at[i], t.link_at[i + 1]):
                j = t.link_other[link]
                if w.inside[j] and w.seen[j] < 0:
                    w.seen[j] = 0
                    w.order[count] = j
                    count += 1
                    w.up[j] = _link_to(t, j, t.link_pair[link])
    for step in range(count):
        w.seen[w.order[step]] = -1
    return count


@compiled
def _link_to(t: Tables, i: int, pair: int) -> int:
    for link in range(t.link_at[i], t.link_at[i + 1]):
        if t.link_pair[link] == pair:
            return link
    return -1


@compiled
def entry(t: Tables, i: int, link: int, s: int, other: int) -> float:
    """The cost of a pair by a link of i: i at state s, the other side at state `other`."""
    pair, j = t.link_pair[link], t.link_other[link]
    place = s * t.size[j] + other if t.left[pair] == i else other * t.size[i] + s
    cost: float = t.table[t.table_at[pair] + place]
    return cost


@compiled
def best_on_forest(
    t: Tables, priced: Array, states: Index, count: int, noise: float, w: Workspace
) -> None:
    """Set `found` to the least-cost states of the forest, given those of the rest in `states`.

    To each state's cost a random number is added, on average `noise`.
    """
    for step in range(count):
        i = w.order[step]
        f, k = t.first[i], t.size[i]
        for s in range(k):
            w.sums[f + s] = priced[f + s]
            if noise > 0.0:
                w.sums[f + s] -= noise * np.log(np.random.random() + 1e-12)
        for link in range(t.link_at[i], t.link_at[i + 1]):
            j = t.link_other[link]
            if not w.inside[j]:
                pair = t.link_pair[link]
                at = t.table_at[pair]
                if t.left[pair] == i:
                    for s in range(k):
                        w.sums[f + s] += t.table[at + s * t.size[j] + states[j]]
                else:
                    at += states[j] * k
                    for s in range(k):
                        w.sums[f + s] += t.table[at + s]
    for step in range(count - 1, -1, -1):
        i = w.order[step]
        if w.up[i] >= 0:
            _lift(t, i, w.up[i], w.sums)
    for step in range(count):
        i = w.order[step]
        f, link = t.first[i], w.up[i]
        best, least = states[i], np.inf
        for s in range(t.size[i]):
            value = w.sums[f + s]
            if link >= 0:
                value += entry(t, i, link, s, w.found[t.link_other[link]])
            if value < least:
                best, least = s, value
        w.found[i] = best


@compiled
def _lift(t: Tables, i: int, link: int, sums: Array) -> None:
    """Add the least of a child's sums, by the parent's state, to those of the parent."""
    pair, p = t.link_pair[link], t.link_other[link]
    f, k, fp, kp, at = t.first[i], t.size[i], t.first[p], t.size[p], t.table_at[pair]
    if t.left[pair] == p:
        for a in range(kp):
            least = np.inf
            for s in range(k):
                value = t.table[at + a * k + s] + sums[f + s]
                if value < least:
                    least = value
            sums[fp + a] += least
    else:
        out = np.full(kp, np.inf)
        for s in range(k):
            base = sums[f + s]
            for a in range(kp):
                value = t.table[at + s * kp + a] + base
                if value < out[a]:
                    out[a] = value
        for a in range(kp):
            sums[fp + a] += out[a]


@compiled
def components(t: Tables, priced: Array, states: Index, count: int, w: Workspace) -> int:
    """Number the connected parts of what changes; `gains` gets what each adds to the priced cost.

    `dearer` gets what each adds to the cost without prices.
    """
    parts = 0
    for step in range(count):
        i = w.order[step]
        w.part[i] = -1
        link = w.up[i]
        p = t.link_other[link] if link >= 0 else -1
        changed, above = w.found[i] != states[i], p >= 0 and w.part[p] >= 0
        if changed:
            if above:
                w.part[i] = w.part[p]
            else:
                w.part[i] = parts
                w.gains[parts] = 0.0
                w.dearer[parts] = 0.0
                parts += 1
            before, after = t.first[i] + states[i], t.first[i] + w.found[i]
            w.gains[w.part[i]] += priced[after] - priced[before]
            w.dearer[w.part[i]] += t.cost[after] - t.cost[before]
            for outer in range(t.link_at[i], t.link_at[i + 1]):
                j = t.link_other[outer]
                if not w.inside[j]:
                    more = entry(t, i, outer, w.found[i], states[j])
                    more -= entry(t, i, outer, states[i], states[j])
                    w.gains[w.part[i]] += more
                    w.dearer[w.part[i]] += more
        if (changed or above) and link >= 0:
            part = w.part[i] if changed else w.part[p]
            more = entry(t, i, link, w.found[i], w.found[p])
            more -= entry(t, i, link, states[i], states[p])
            w.gains[part] += more
            w.dearer[part] += more
    return parts
