"""Exact search: the chain of downsets whose largest stage load is least, among loads up to a limit.

With the devices of state s, the least maximal load of the groups in downset b is

    load(b, s) = min over a within b, moves m:  max(load(a, s without m), cost of m on [a, b))

with load(empty, nothing) = 0 (Tarnawski et al., NeurIPS 2020).  For each b, the downsets a within it are
visited by a depth-first search down the lattice, which adds one group to the stage at a time and
updates how many of the groups that touch a tensor are inside.  Costs without transfers grow with the
stage, so the search turns back where they exceed the limit on every move.  Only states that the
relaxation of `reach.py` does not exclude are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.lattice.downsets import Array, Lattice, Small
from autopar.pipeline.planner.lattice.order import Ints
from autopar.pipeline.planner.lattice.reach import Devices, Truths
from autopar.utils.compiled import compiled

ROUNDING = 1e-12
"""Loads are compared with limits up to this relative difference, by which sums in other orders differ."""
AT_ONCE = 512
"""Downsets that are extended between two looks at the clock."""


class Ranges(NamedTuple):
    """Sums per downset: a range's seconds are `seconds[m, b] - seconds[m, a]`, and so its bytes.

    A range is offered by move m if `missing[m]` is the same at both ends.
    """

    seconds: Array
    missing: Array
    nbytes: Array
    room: Array


class Crossings(NamedTuple):
    """Group g touches the tensors `touched[first[g]]` to `touched[first[g + 1] - 1]`.

    `touching[t]` groups touch tensor t.  At a border of a stage on move m it costs
    `seconds[kind[m], t]`.
    """

    first: Ints
    touched: Ints
    touching: Ints
    seconds: Array
    kind: Ints


class Loads(NamedTuple):
    """`load[b, s]`, and the downset and the move from which it comes; `is_open[b]`: some load is finite."""

    load: Array
    parent: Small
    move: NDArray[np.int16]
    is_open: Truths


class Stage(NamedTuple):
    """The range from downset `start` to `end` on a move."""

    start: int
    end: int
    move: int


@dataclass(frozen=True)
class Chain:
    """The best chain of stages; none if no chain is within the limit, or the search is not complete."""

    stages: tuple[Stage, ...]
    load_s: float
    is_complete: bool


def best_chain(
    lattice: Lattice,
    ranges: Ranges,
    crossings: Crossings,
    devices: Devices,
    allowed: Truths,
    limit_s: float,
    spend: Callable[[int], bool],
) -> Chain:
    """Return the chain of least load, among loads up to the limit.

    `allowed[b, s]` is whether a state is computed.  `spend` is told how many pairs of downsets were
    visited, and says whether to go on.
    """
    count, states = allowed.shape
    found = Loads(
        np.full((count, states), np.inf),
        np.full((count, states), -1, np.int32),
        np.full((count, states), -1, np.int16),
        np.zeros(count, np.bool_),
    )
    found.load[0, 0] = 0.0
    found.is_open[0] = True
    stamps = np.full(count, -1, np.int32)
    edges = (lattice.first, lattice.lower, lattice.group)
    wanted = np.flatnonzero(allowed.any(axis=1)).astype(np.int64)
    for start in range(0, len(wanted), AT_ONCE):
        visited = _extend(
            wanted[start : start + AT_ONCE], *edges, ranges, crossings, devices.after, allowed,
            limit_s * (1 + ROUNDING), found, stamps,
        )  # fmt: skip
        if not spend(visited):
            return Chain((), np.inf, False)
    return Chain(*_stages(found, devices), True)


def _stages(found: Loads, devices: Devices) -> tuple[tuple[Stage, ...], float]:
    """Return the stages of the best chain to the full downset, and their largest load."""
    here = len(found.load) - 1
    state = int(found.load[here].argmin())
    load_s = float(found.load[here, state])
    stages: list[Stage] = []
    while here > 0 and load_s < np.inf:
        start, move = int(found.parent[here, state]), int(found.move[here, state])
        stages.append(Stage(start, here, move))
        here, state = start, int(np.flatnonzero(devices.after[:, move] == state)[0])
    return tuple(stages[::-1]), load_s


@compiled
def _extend(
    wanted: Ints,
    first: Ints,
    lower: Small,
    group: Small,
    ranges: Ranges,
    crossings: Crossings,
    after: Ints,
    allowed: Truths,
    limit_s: float,
    found: Loads,
    stamps: Small,
) -> int:
    """Compute the loads of the wanted downsets, in this order; return how many ranges were visited."""
    depth_most = len(crossings.first) + 1
    kinds = len(crossings.seconds)
    node = np.zeros(depth_most, np.int64)
    edge = np.zeros(depth_most, np.int64)
    paid = np.zeros((depth_most, kinds))
    inside = np.zeros(len(crossings.touching), np.int64)
    visited = 0
    for end in wanted:
        depth = 0
        node[0], edge[0] = end, first[end]
        while depth >= 0:
            if edge[depth] == first[node[depth] + 1]:
                depth -= 1
                if depth >= 0:
                    _leave(crossings, group[edge[depth] - 1], inside)
                continue
            start = np.int64(lower[edge[depth]])
            edge[depth] += 1
            if stamps[start] == end:
                continue
            stamps[start] = end
            visited += 1
            if not _fits_some(ranges, start, end, limit_s):
                continue
            for kind in range(kinds):
                paid[depth + 1, kind] = paid[depth, kind]
            _enter(crossings, group[edge[depth] - 1], inside, paid[depth + 1])
            depth += 1
            node[depth], edge[depth] = start, first[start]
            if found.is_open[start]:
                _relax(ranges, crossings, after, allowed, limit_s, found, start, end, paid[depth])
    return visited


@compiled
def _fits_some(ranges: Ranges, start: int, end: int, limit_s: float) -> bool:
    """Whether some move runs a range within the limit and the memory if no tensor crosses a border."""
    for move in range(len(ranges.room)):
        if _fits(ranges, move, start, end, limit_s):
            return True
    return False


@compiled
def _fits(ranges: Ranges, move: int, start: int, end: int, limit_s: float) -> bool:
    """Whether a move does."""
    if ranges.missing[move, start] != ranges.missing[move, end]:
        return False
    if ranges.seconds[move, end] - ranges.seconds[move, start] > limit_s:
        return False
    return bool(ranges.nbytes[move, end] - ranges.nbytes[move, start] <= ranges.room[move])


@compiled
def _enter(crossings: Crossings, group: int, inside: Ints, paid: Array) -> None:
    """Add a group to the stage: its tensors start to cross, or are inside entirely now."""
    for at in range(crossings.first[group], crossings.first[group + 1]):
        tensor = crossings.touched[at]
        inside[tensor] += 1
        sign = 0.0
        if inside[tensor] == 1:
            sign += 1.0
        if inside[tensor] == crossings.touching[tensor]:
            sign -= 1.0
        for kind in range(len(paid)):
            paid[kind] += sign * crossings.seconds[kind, tensor]


@compiled
def _leave(crossings: Crossings, group: int, inside: Ints) -> None:
    """Remove a group from the stage."""
    for at in range(crossings.first[group], crossings.first[group + 1]):
        inside[crossings.touched[at]] -= 1


@compiled
def _relax(
    ranges: Ranges,
    crossings: Crossings,
    after: Ints,
    allowed: Truths,
    limit_s: float,
    found: Loads,
    start: int,
    end: int,
    paid: Array,
) -> None:
    """Take over the loads at `end` that a stage from `start` improves."""
    for move in range(len(ranges.room)):
        if not _fits(ranges, move, start, end, limit_s):
            continue
        load = ranges.seconds[move, end] - ranges.seconds[move, start] + paid[crossings.kind[move]]
        if load > limit_s:
            continue
        for state in range(len(after)):
            there = after[state, move]
            if there >= 0 and allowed[end, there]:
                largest = max(load, found.load[start, state])
                if largest < found.load[end, there]:
                    found.load[end, there] = largest
                    found.parent[end, there] = start
                    found.move[end, there] = move
                    found.is_open[end] = True
