"""Bytes over time: what an assignment uses, and what it costs at a price per time."""

from __future__ import annotations

import numpy as np

from autopar.solver.anytime.tables import Index, Tables
from autopar.solver.anytime.timed_problem import Array
from autopar.utils.compiled import compiled


@compiled
def usage(t: Tables, states: Index) -> Array:
    """The bytes in use at each time."""
    course = np.zeros(len(t.limit) + 1)
    for i in range(len(t.size)):
        for span in range(t.span_at[i], t.span_at[i + 1]):
            held = t.nbytes[t.nbytes_at[span] + states[i]]
            course[t.span_start[span]] += held
            course[t.span_stop[span]] -= held
    for time in range(1, len(course)):
        course[time] += course[time - 1]
    return course[:-1]


@compiled
def price(t: Tables, prices: Array) -> Array:
    """All costs by state, with the bytes of each state at the prices of the times they cover."""
    sums = np.zeros(len(prices) + 1)
    for time in range(len(prices)):
        sums[time + 1] = sums[time] + prices[time]
    priced = t.cost.copy()
    for i in range(len(t.size)):
        for span in range(t.span_at[i], t.span_at[i + 1]):
            each = sums[t.span_stop[span]] - sums[t.span_start[span]]
            if each != 0.0:
                at, f = t.nbytes_at[span], t.first[i]
                for s in range(t.size[i]):
                    priced[f + s] += each * t.nbytes[at + s]
    return priced


@compiled
def cost_of(t: Tables, costs: Array, states: Index) -> float:
    """The sum of costs by state and of the pair tables."""
    total = 0.0
    for i in range(len(t.size)):
        total += costs[t.first[i] + states[i]]
    for pair in range(len(t.left)):
        i, j = t.left[pair], t.right[pair]
        total += t.table[t.table_at[pair] + states[i] * t.size[j] + states[j]]
    return total
