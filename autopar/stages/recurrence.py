"""The recurrence over suffixes of a chain that all planners and bounds here share.

F[s][e, k, d] is the best value of what lies behind cut k, in s stages on exactly d devices, the first
of which reads layout e:

    F[s][e, k, d] = min over shapes n, ways from e to x, cuts j > k:  step(way[k, j], H[s-1][x, j, d - n])
    H[s][x, j, d] = min over e' of  cross(j, x, e', F[s][e', j, d])

and H[0] is 0 exactly at the last cut with no device left.  Three algebras are used: `total` adds,
`slowest` takes the larger, `makespan` is max(station, head + what follows).  A stage's position from the end,
s, fixes how many microbatches it holds, so the ways that fit depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Crossing = Callable[[Array, slice], Array]
"""F[e, j, d] of some cuts j -> H[x, j, d]."""


@dataclass(frozen=True, eq=False)
class Step:
    """All ways of one size from one layout to another: on [k, j], max(station, head + what follows)."""

    size: int
    entry: int
    exit: int
    station: Array | None
    head: Array | None


BLOCK = 16
"""Starts that are treated together: smaller ones waste less of the triangle, larger ones less overhead."""


def combined(step: Step, rows: slice, columns: slice, behind: Array) -> Array:
    """[k, j, d]: the value of each first stage and what follows it."""
    if step.head is None:
        assert step.station is not None
        return np.maximum(step.station[rows, columns, None], behind[None])
    made: Array = step.head[rows, columns, None] + behind[None]
    if step.station is not None:
        np.maximum(made, step.station[rows, columns, None], out=made)
    return made


def end_of_chain(borders: int, positions: int, devices: int) -> Array:
    """H[0]."""
    made = np.full((borders, positions, devices + 1), math.inf)
    made[:, -1, 0] = 0.0
    return made


def one_more(steps: Sequence[Step], behind: Array) -> Array:
    """F[s] from H[s - 1]."""
    _, positions, more = behind.shape
    made = np.full(behind.shape, math.inf)
    alive = np.flatnonzero(np.isfinite(behind).any(axis=(0, 2)))
    if not len(alive):
        return made
    last = int(alive[-1]) + 1
    for step in steps:
        left = more - step.size
        if left <= 0:
            continue
        for low in range(0, last - 1, BLOCK):
            rows, columns = slice(low, min(low + BLOCK, last - 1)), slice(max(low + 1, int(alive[0])), last)
            if columns.start >= last:
                continue
            best = combined(step, rows, columns, behind[step.exit, columns, :left]).min(axis=1)
            at = made[step.entry, rows, step.size :]
            np.minimum(at, best, out=at)
    return made


def suffixes(
    steps_at: Callable[[int], Sequence[Step]],
    cross: Crossing,
    borders: int,
    positions: int,
    devices: int,
    most_stages: int,
) -> list[Array]:
    """F[1], F[2], ... as far as anything is finite."""
    behind = end_of_chain(borders, positions, devices)
    found: list[Array] = []
    for stages in range(1, most_stages + 1):
        best = one_more(steps_at(stages), behind)
        if not np.isfinite(best).any():
            break
        found.append(best)
        behind = cross(best, slice(None))
    return found


def any_number(
    steps: Sequence[Step], cross: Crossing, borders: int, positions: int, devices: int
) -> Array:
    """min over s of F[s], where the ways do not depend on s: one pass over the cuts from the end."""
    behind = end_of_chain(borders, positions, devices)
    best = np.full(behind.shape, math.inf)
    for start in range(positions - 2, -1, -1):
        rows, columns = slice(start, start + 1), slice(start + 1, positions)
        for step in steps:
            left = devices + 1 - step.size
            if left <= 0:
                continue
            found = combined(step, rows, columns, behind[step.exit, columns, :left]).min(axis=1)
            at = best[step.entry, rows, step.size :]
            np.minimum(at, found, out=at)
        behind[:, rows] = cross(best[:, rows], rows)
    return best
