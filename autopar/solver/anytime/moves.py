"""Takes forest moves as far as bytes allow, over all variables or around one after another.

What a forest move changes falls apart into parts that share no table; each is taken if the bytes
stay within their limits at all times.
"""

from __future__ import annotations

import numpy as np

from autopar.solver.anytime.forest import (
    Workspace,
    best_on_forest,
    components,
    draw,
    rooted,
)
from autopar.solver.anytime.tables import Index, Tables
from autopar.solver.anytime.timed_problem import Array
from autopar.utils.compiled import compiled


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
    t: Tables,
    states: Index,
    count: int,
    parts: int,
    course: Array,
    most: Array,
    worst: float,
    w: Workspace,
) -> tuple[float, float]:
    """Take the parts in the order of their gains, as far as bytes allow; return what they add.

    That is, to the priced cost and to the cost.  Parts that add more than `worst` are left out.
    """
    start = np.zeros(parts + 1, dtype=np.int64)
    for step in range(count):
        part = w.part[w.order[step]]
        if part >= 0:
            start[part + 1] += 1
    for part in range(parts):
        start[part + 1] += start[part]
    members = np.empty(start[parts], dtype=np.int64)
    free = start[:-1].copy()
    for step in range(count):
        i = w.order[step]
        if w.part[i] >= 0:
            members[free[w.part[i]]] = i
            free[w.part[i]] += 1
    gain, dearer = 0.0, 0.0
    for part in np.argsort(w.gains[:parts]):
        if w.gains[part] > worst:
            break
        here = members[start[part] : start[part + 1]]
        for i in here:
            shift(t, i, states[i], w.found[i], course)
        bad = False
        for i in here:
            if exceeds(t, i, states[i], w.found[i], course, most):
                bad = True
                break
        if bad:
            for i in here:
                shift(t, i, w.found[i], states[i], course)
        else:
            gain += w.gains[part]
            dearer += w.dearer[part]
            for i in here:
                states[i] = w.found[i]
    return gain, dearer


@compiled
def forest_move(
    t: Tables,
    priced: Array,
    states: Index,
    candidates: Index,
    course: Array,
    most: Array,
    noise: float,
    w: Workspace,
) -> tuple[float, float]:
    """Solve a forest drawn from the candidates, take what fits; return what that adds to costs.

    The first is with prices, the second without.
    """
    draw(t, candidates, w)
    count = rooted(t, candidates, w)
    best_on_forest(t, priced, states, count, noise, w)
    parts = components(t, priced, states, count, w)
    worst = np.inf if noise > 0.0 else 0.0
    added = take(t, states, count, parts, course, most, worst, w)
    for step in range(count):
        w.inside[w.order[step]] = False
    return added


@compiled
def around(t: Tables, center: int, most: int, known: Index, stamp: int) -> Index:
    """Return up to `most` variables, breadth first from the center; `known` has stamps of before."""
    found = np.empty(most, dtype=np.int64)
    found[0] = center
    known[center] = stamp
    at, size = 0, 1
    while at < size and size < most:
        i = found[at]
        at += 1
        for link in range(t.link_at[i], t.link_at[i + 1]):
            j = t.link_other[link]
            if known[j] != stamp and size < most:
                known[j] = stamp
                found[size] = j
                size += 1
    return found[:size]


@compiled
def local_moves(
    t: Tables,
    priced: Array,
    states: Index,
    course: Array,
    moves: int,
    widest: int,
    scale: float,
    seed: int,
    best: Index,
    w: Workspace,
) -> tuple[float, float]:
    """Disturb around random variables and improve there; keep what adds nothing to the priced cost.

    `best` is set to the cheapest assignment on the way, without prices; returns what that, and where
    the search ended, add to the cost at the start.
    """
    np.random.seed(seed)
    count = len(t.size)
    known = np.full(count, -1)
    cost, least = 0.0, 0.0
    for move in range(moves):
        size = int(3.0 * (widest / 3.0) ** np.random.random())
        region = around(t, np.random.randint(count), min(size, count), known, move)
        before = states[region]
        noise = scale * 10.0 ** np.random.uniform(-3.0, 1.0)
        gain, dearer = 0.0, 0.0
        for turn in range(3):
            np.random.shuffle(region)
            if turn == 0:
                saved = region.copy()
                for at in range(len(region)):
                    before[at] = states[region[at]]
            added = forest_move(
                t, priced, states, region, course, t.limit, noise if turn == 0 else 0.0, w
            )
            gain += added[0]
            dearer += added[1]
        if gain > 0.0:
            for at in range(len(saved)):
                i = saved[at]
                if states[i] != before[at]:
                    shift(t, i, states[i], before[at], course)
                    states[i] = before[at]
            continue
        cost += dearer
        if cost < least - 1e-9 * abs(least):
            least = cost
            best[:] = states
    return least, cost
