"""The recurrence over suffixes of a chain that all planners and bounds here share.

F[s][e, k, d] is the best value of what lies behind cut k, in s stages on exactly d devices, the first
of which reads layout e:

    F[s][e, k, d] = min over shapes n, ways from e to x, cuts j > k  of
                    step(way[k, j], H[s - 1][x, j, d - n])
    H[s][x, j, d] = min over e'  of  cross(j, x, e', F[s][e', j, d])

and H[0] is 0 exactly at the last cut with no device left.  Three algebras are used: one adds, one
takes the larger, and one is max(station, head + what follows).  A stage's position from the end, s,
fixes how many microbatches it holds, so the ways that fit depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.intp]
Crossing = Callable[[Array, slice], Array]
"""F[e, j, d] of some cuts j -> [x, e, j, d], whose minimum over e is H."""
Allowed = tuple[int, NDArray[np.bool_]]
"""A size of stages, and the ranges [start, end] that they may take."""
BLOCK = 8
"""Starts that are treated together: smaller ones waste less of the triangle, larger ones less
overhead."""


@dataclass(frozen=True, eq=False)
class Step:
    """All ways of one size from one layout to another: on [k, j], max(station, head + what follows).

    `spans` are blocks of starts, and between which cuts ranges of the block may end.
    """

    size: int
    entry: int
    exit: int
    station: Array | None
    head: Array | None
    spans: Sequence[tuple[int, int, int, int]]

    def values(self, rows: slice, columns: slice, behind: Array) -> Array:
        """[k, j, d]: the value of each first stage and what follows it."""
        if self.head is None:
            assert self.station is not None
            return np.maximum(self.station[rows, columns, None], behind[None])
        made: Array = self.head[rows, columns, None] + behind[None]
        if self.station is not None:
            np.maximum(made, self.station[rows, columns, None], out=made)
        return made


class Steps(Protocol):
    """The stages that may stand at each position from the end."""

    def __call__(self, position: int) -> Sequence[Step]:
        """At one position."""

    def anywhere(self) -> Sequence[Allowed]:
        """At any position, and perhaps more."""


def spans_of(there: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """From which ranges [start, end] there are."""
    made = []
    for low in range(0, len(there) - 1, BLOCK):
        high = min(low + BLOCK, len(there) - 1)
        ends = np.flatnonzero(there[low:high].any(axis=0))
        if len(ends):
            made.append((low, high, int(ends[0]), int(ends[-1]) + 1))
    return made


def nearest(crossed: Array) -> Array:
    """H: what follows in the layout in which it is least."""
    return crossed[:, 0] if crossed.shape[1] == 1 else np.asarray(crossed.min(axis=1))


def end_of_chain(borders: int, positions: int, devices: int) -> Array:
    """H[0]."""
    made = np.full((borders, positions, devices + 1), math.inf)
    made[:, -1, 0] = 0.0
    return made


def one_more(steps: Sequence[Step], behind: Array, room: Ints) -> Array:
    """F[s] from H[s - 1]; `room`: by cut, the most devices behind it that anybody asks for."""
    made = np.full(behind.shape, math.inf)
    there: NDArray[np.bool_] = np.asarray((behind < math.inf).any(axis=0))
    reached = np.asarray(there.any(axis=1))
    cuts = np.flatnonzero(reached)
    if not len(cuts):
        return made
    # Lists: their slices are short, and an array's minimum starts slower than it runs.
    few = np.where(reached, there.argmax(axis=1), behind.shape[2]).tolist()
    many = np.where(reached, behind.shape[2] - there[:, ::-1].argmax(axis=1), 0).tolist()
    rooms = room.tolist()
    first, last = int(cuts[0]), int(cuts[-1]) + 1
    for step in steps:
        for low, high, left, right in step.spans:
            rows, columns = slice(low, high), slice(max(left, first), min(right, last))
            if columns.start >= columns.stop:
                continue
            least = min(few[columns])
            most = min(max(many[columns]), max(rooms[rows]) - step.size + 1)
            if least < most:
                at = made[step.entry, rows, least + step.size : most + step.size]
                values = step.values(rows, columns, behind[step.exit, columns, least:most])
                np.minimum(at, values.min(axis=1), out=at)
    return made


def fewest_before(anywhere: Sequence[Allowed], sizes: tuple[int, int, int]) -> Ints:
    """By cut, no more devices than stages need that hold all that comes before it.

    One more than all devices where there is no way to get there.
    """
    fewest = np.full(sizes[1], sizes[2] + 1)
    fewest[0] = 0
    for cut in range(1, sizes[1]):
        for size, there in anywhere:
            starts = fewest[:cut][there[:cut, cut]]
            if len(starts):
                fewest[cut] = min(fewest[cut], starts.min() + size)
    return fewest


def suffixes(
    steps_at: Steps,
    cross_at: Callable[[int], Crossing],
    sizes: tuple[int, int, int],
    most_stages: int,
    longest_at: Callable[[int], float] = lambda position: math.inf,
) -> list[Array]:
    """F[1], F[2], ... as far as anything is finite; values above `longest_at` their position are
    dropped, and those that leave too few devices for what comes before.

    `cross_at(s)` leads from F[s - 1] to H[s - 1], in front of which a stage at position s is put.
    """
    behind = end_of_chain(*sizes)
    room = sizes[2] - fewest_before(steps_at.anywhere(), sizes)
    crowded = np.arange(sizes[2] + 1) > room[:, None]
    found: list[Array] = []
    for position in range(1, most_stages + 1):
        if found:
            behind = _between(cross_at(position), found[-1])
        best = one_more(steps_at(position), behind, room)
        best[:, crowded] = math.inf
        longest = longest_at(position)
        if longest < math.inf:
            best[best > longest] = math.inf
        if not np.isfinite(best).any():
            break
        found.append(best)
    return found


def _between(cross: Crossing, best: Array) -> Array:
    """H, computed only where something follows."""
    there = best < math.inf
    cuts, counts = (_span(np.asarray(there.any(axis=axes))) for axes in ((0, 2), (0, 1)))
    made = np.full(best.shape, math.inf)
    made[:, cuts, counts] = nearest(cross(best[:, cuts, counts], cuts))
    return made


def _span(there: NDArray[np.bool_]) -> slice:
    """From the first to the last."""
    places = np.flatnonzero(there)
    return slice(int(places[0]), int(places[-1]) + 1)


def least(found: Sequence[Array]) -> float:
    """The best value of the whole chain on all devices."""
    return min((float(best[:, 0, -1].min()) for best in found), default=math.inf)


def any_number(steps: Sequence[Step], cross: Crossing, sizes: tuple[int, int, int]) -> float:
    """The same where ways do not depend on s: one pass over the cuts from the end."""
    behind = end_of_chain(*sizes)
    best = np.full(behind.shape, math.inf)
    for start in range(sizes[1] - 2, -1, -1):
        rows, columns = slice(start, start + 1), slice(start + 1, None)
        for step in steps:
            left = behind.shape[2] - step.size
            if left > 0:
                reached = behind[step.exit, columns, :left]
                at = best[step.entry, rows, step.size :]
                np.minimum(at, step.values(rows, columns, reached).min(axis=1), out=at)
        behind[:, rows] = nearest(cross(best[:, rows], rows))
    return least([best])
