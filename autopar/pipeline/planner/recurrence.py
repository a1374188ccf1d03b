"""Recurrence over the suffixes of a chain, shared by the planners and bounds of this package.

F[s][e, k, d] is the best value of the layers after cut k, in s stages on exactly d devices, the first
of which receives layout e:

    F[s][e, k, d] = min over shapes n, ways from e to x, cuts j > k  of
                    step(way[k, j], H[s - 1][x, j, d - n])
    H[s][x, j, d] = min over e'  of  cross(j, x, e', F[s][e', j, d])

H[0] is 0 at the last cut with no device left, and infinite elsewhere.  `step` is a sum, a maximum, or
max(station, head + what follows).  The position s of a stage from the end determines how many
microbatches it holds, so the ways that fit depend on s.
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
"""Maps F[e, j, d] of some cuts j to [x, e, j, d], whose minimum over e is H."""
Allowed = tuple[int, NDArray[np.bool_]]
"""A stage size, and a mask [start, end] of the ranges that stages of this size can take."""
BLOCK = 8
"""The number of starts processed together.

Smaller blocks compute fewer cells outside the triangle, larger blocks have less overhead.
"""


@dataclass(frozen=True, eq=False)
class Step:
    """All ways of one size from one layout to another, over [k, j]: max(station, head + what follows).

    `spans` has (low, high, left, right): for starts in [low, high), ranges end in [left, right).
    """

    size: int
    entry: int
    exit: int
    station: Array | None
    head: Array | None
    spans: Sequence[tuple[int, int, int, int]]

    def values(self, rows: slice, columns: slice, behind: Array) -> Array:
        """Return [k, j, d]: the value of each first stage and what follows it."""
        if self.head is None:
            assert self.station is not None
            return np.maximum(self.station[rows, columns, None], behind[None])
        made: Array = self.head[rows, columns, None] + behind[None]
        if self.station is not None:
            np.maximum(made, self.station[rows, columns, None], out=made)
        return made


class Steps(Protocol):
    """The stages that are possible at each position from the end."""

    def __call__(self, position: int) -> Sequence[Step]:
        """Return the steps at one position."""

    def anywhere(self) -> Sequence[Allowed]:
        """Return a superset of the ranges that are possible at any position."""


def spans_of(there: NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """Return the `spans` of a `Step` whose ranges are marked in `there`, [start, end]."""
    made = []
    for low in range(0, len(there) - 1, BLOCK):
        high = min(low + BLOCK, len(there) - 1)
        ends = np.flatnonzero(there[low:high].any(axis=0))
        if len(ends):
            made.append((low, high, int(ends[0]), int(ends[-1]) + 1))
    return made


def nearest(crossed: Array) -> Array:
    """Return H: the minimum over the layouts that the next stage can receive."""
    return crossed[:, 0] if crossed.shape[1] == 1 else np.asarray(crossed.min(axis=1))


def end_of_chain(borders: int, positions: int, devices: int) -> Array:
    """Return H[0]."""
    made = np.full((borders, positions, devices + 1), math.inf)
    made[:, -1, 0] = 0.0
    return made


def one_more(steps: Sequence[Step], behind: Array, room: Ints) -> Array:
    """Return F[s] from H[s - 1]; `room[k]` is the most devices that may be left after cut k."""
    made = np.full(behind.shape, math.inf)
    there: NDArray[np.bool_] = np.asarray((behind < math.inf).any(axis=0))
    reached = np.asarray(there.any(axis=1))
    cuts = np.flatnonzero(reached)
    if not len(cuts):
        return made
    # Python lists: their slices are short, and the call of an array's min() costs more than its work.
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
    """Return by cut a lower bound on the devices that the stages before it need.

    It is the number of devices plus one for a cut that no stages reach.
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
    """Return F[1], F[2], ... as long as any value is finite.

    Values above `longest_at` of their position are dropped, and so are values that leave too few
    devices for the layers before them.  `cross_at(s)` maps F[s - 1] to H[s - 1], to which a stage at
    position s is prepended.
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
    """Return H, computed only for the cuts and numbers of devices between which F is finite."""
    there = best < math.inf
    cuts, counts = (_span(np.asarray(there.any(axis=axes))) for axes in ((0, 2), (0, 1)))
    made = np.full(best.shape, math.inf)
    made[:, cuts, counts] = nearest(cross(best[:, cuts, counts], cuts))
    return made


def _span(there: NDArray[np.bool_]) -> slice:
    """Return the slice from the first to the last true element."""
    places = np.flatnonzero(there)
    return slice(int(places[0]), int(places[-1]) + 1)


def least(found: Sequence[Array]) -> float:
    """Return the best value of the whole chain on all devices."""
    return min((float(best[:, 0, -1].min()) for best in found), default=math.inf)


def any_number(steps: Sequence[Step], cross: Crossing, sizes: tuple[int, int, int]) -> float:
    """Return the best value if the ways do not depend on s, by one pass over the cuts from the end."""
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
