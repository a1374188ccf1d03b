"""The cheapest assignment of a small problem, by trying all: prices would approach it for long."""

from __future__ import annotations

import math

import numpy as np

from autopar.solver.anytime.tables import Index, Tables

MOST = 4096
"""Assignments."""
MOST_ENTRIES = 1_000_000
"""Bytes of all assignments at all times."""


def is_small(t: Tables) -> bool:
    """Whether all assignments can be tried."""
    count = math.prod(map(int, t.size))
    return count <= MOST and count * max(1, len(t.limit)) <= MOST_ENTRIES


def cheapest(t: Tables) -> tuple[Index, float] | None:
    """Return the cheapest assignment within the limits and its cost; None if there is none."""
    sizes = [int(size) for size in t.size]
    every = np.indices(sizes).reshape(len(sizes), math.prod(sizes))
    cost = np.zeros(every.shape[1])
    course = np.zeros((len(t.limit), every.shape[1]))
    for i, states in enumerate(every):
        cost += t.cost[t.first[i] + states]
        for span in range(t.span_at[i], t.span_at[i + 1]):
            course[t.span_start[span] : t.span_stop[span]] += t.nbytes[t.nbytes_at[span] + states]
    for pair, (i, j) in enumerate(zip(t.left, t.right, strict=True)):
        cost += t.table[t.table_at[pair] + every[i] * t.size[j] + every[j]]
    cost[np.any(course > t.limit[:, None], axis=0)] = np.inf
    best = int(cost.argmin())
    return (every[:, best], float(cost[best])) if np.isfinite(cost[best]) else None
