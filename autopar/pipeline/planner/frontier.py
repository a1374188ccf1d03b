"""Pareto frontiers of sums of options: one option per layer, seconds against several kinds of bytes.

A row has (seconds, reduced bytes, rest, kept, working bytes).  All columns but the last are added; of
the working bytes the maximum counts.  Choosing options within a memory limit is a multiple-choice
knapsack problem, NP-hard in general; equal layers make the frontiers small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.workload import Option

Array = NDArray[np.float64]
REDUCED, KEPT, WORKING = 1, 3, 4
NOTHING = np.zeros((1, 5))
AT_ONCE = 600
"""Up to this number, all pairs of rows are compared in one array operation."""


def row(option: Option) -> tuple[float, ...]:
    """Return the row that an option adds to its stage."""
    return (
        option.seconds, option.reduced_nbytes, option.rest_nbytes, option.kept_nbytes,
        option.working_nbytes,
    )  # fmt: skip


def added(one: Array, two: Array) -> Array:
    """Return all sums of a row of `one` and a row of `two`; i and j are in row i * len(two) + j."""
    pairs = one[:, None, :] + two[None, :, :]
    pairs[:, :, WORKING] = np.maximum(one[:, None, WORKING], two[None, :, WORKING])
    joined: Array = pairs.reshape(-1, pairs.shape[2])
    return joined


def undominated(rows: Array) -> NDArray[np.intp]:
    """Return the indices of the rows that no other row dominates; of equal rows only the first."""
    if len(rows) < 2:
        return np.arange(len(rows))
    differing = rows[:, (rows != rows[0]).any(axis=0)]
    if differing.shape[1] < 2:
        return np.array([0 if differing.shape[1] == 0 else int(differing[:, 0].argmin())])
    order = np.lexsort(differing.T[::-1])
    differing = differing[order]
    if len(order) <= AT_ONCE:
        beats = np.triu((differing[:, None] <= differing[None]).all(axis=2), 1)
        return np.sort(order[~beats.any(axis=0)])
    chosen: list[int] = []
    for at in range(len(order)):
        if not (differing[chosen] <= differing[at]).all(axis=1).any():
            chosen.append(at)
    return np.sort(order[chosen])


def sums(options: Sequence[Array]) -> tuple[Array, NDArray[np.intp]]:
    """Return the frontier of sums over layers, and for each of its rows the index chosen per layer."""
    total = NOTHING
    choices = np.zeros((1, 0), dtype=np.intp)
    for rows in options:
        joined = added(total, rows)
        kept = undominated(joined)
        choices = np.hstack((choices[kept // len(rows)], (kept % len(rows))[:, None]))
        total = joined[kept]
    return total, choices
