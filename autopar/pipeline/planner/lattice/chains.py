"""Exact search: the chain of downsets whose largest stage load is least, among loads up to a limit.

With the devices of state s, the least maximal load of the groups in downset b is

    load(b, s) = min over downsets a in b and moves m:  max(load(a, s less m), cost of m on [a, b))

with load(empty, nothing) = 0 (Tarnawski et al., NeurIPS 2020).  The costs of a range take little time:
its seconds and bytes are differences of sums, and so are almost all transfers.  Only downsets and states
that the relaxation of `reach.py` does not exclude are computed, which are few near the optimum.

Let cut(d) be the tensors that some, but not all groups in downset d touch.  Then the tensors that cross
the borders of [a, b) are those of cut(a) and cut(b), except that one in both counts once, and not at all
if it touches no group between a and b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autopar.pipeline.planner.lattice.downsets import Lattice, Small, Words
from autopar.pipeline.planner.lattice.exact import Array
from autopar.pipeline.planner.lattice.order import Ints
from autopar.pipeline.planner.lattice.reach import Devices, Truths
from autopar.pipeline.planner.lattice.transfers import Crossings
from autopar.utils.compiled import compiled, inlined

ROUNDING = 1e-12
"""Loads are compared with limits up to this relative difference, the rounding of sums."""
AT_ONCE = 256
"""Downsets that are extended between two looks at the clock."""


class Ranges(NamedTuple):
    """Sums per downset: a range's seconds are `seconds[m, b] - seconds[m, a]`, and so its bytes.

    Move m offers a range if `missing[m]` is the same at both ends; it has `room[m]` bytes.  The device
    time `work[b] - work[a]` is at most `most_work` times the load.
    """

    seconds: Array
    missing: Array
    nbytes: Array
    room: Array
    work: Array
    most_work: float


class Cuts(NamedTuple):
    """The tensors that each downset cuts, as bits, and the sum of their seconds by kind of move."""

    tensors: Words
    seconds: Array


class Loads(NamedTuple):
    """`load[b, s]`, and the downset and the move from which it comes; `is_open[b]`: some is finite."""

    load: Array
    parent: Small
    move: Small
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
    compared, and says whether to go on.
    """
    if not allowed[0, 0] or not allowed[-1].any():
        return Chain((), np.inf, True)
    chosen = np.flatnonzero(allowed.any(axis=1))
    chosen = chosen[np.argsort(ranges.work[chosen], kind="stable")]
    words = lattice.words[chosen]
    there = Ranges(
        ranges.seconds[:, chosen], ranges.missing[:, chosen], ranges.nbytes[:, chosen],
        ranges.room, ranges.work[chosen], ranges.most_work,
    )  # fmt: skip
    states = np.ascontiguousarray(allowed[chosen])
    found = Loads(
        np.full(states.shape, np.inf),
        np.full(states.shape, -1, np.int32),
        np.full(states.shape, -1, np.int32),
        np.zeros(len(chosen), np.bool_),
    )
    cuts = _cuts(words, crossings)
    found.load[0, 0], found.is_open[0] = 0.0, True
    for start in range(1, len(chosen), AT_ONCE):
        compared = _extend(
            start, min(start + AT_ONCE, len(chosen)), words, there, crossings, cuts,
            devices.after, states, limit_s * (1 + ROUNDING), found,
        )  # fmt: skip
        if not spend(compared):
            return Chain((), np.inf, False)
    stages, load_s = _stages(found, devices)
    numbered = (Stage(int(chosen[a]), int(chosen[b]), move) for a, b, move in stages)
    return Chain(tuple(numbered), load_s, True)


def _stages(found: Loads, devices: Devices) -> tuple[list[Stage], float]:
    """Return the stages of the best chain to the last downset, and their largest load."""
    here = len(found.load) - 1
    state = int(found.load[here].argmin())
    load_s = float(found.load[here, state])
    stages: list[Stage] = []
    while here > 0 and load_s < np.inf:
        start, move = int(found.parent[here, state]), int(found.move[here, state])
        stages.append(Stage(start, here, move))
        here, state = start, int(np.flatnonzero(devices.after[:, move] == state)[0])
    return stages[::-1], load_s


@compiled
def _cuts(words: Words, crossings: Crossings) -> Cuts:
    """Return what each downset cuts."""
    kinds, count = crossings.seconds.shape
    tensors = np.zeros((len(words), (count + 63) // 64), np.uint64)
    seconds = np.zeros((kinds, len(words)))
    for d in range(len(words)):
        for tensor in range(count):
            some, every = False, True
            for word in range(words.shape[1]):
                inside = crossings.touches[tensor, word] & words[d, word]
                some |= inside != 0
                every &= inside == crossings.touches[tensor, word]
            if some and not every:
                tensors[d, tensor >> 6] |= np.uint64(1) << np.uint64(tensor & 63)
                for kind in range(kinds):
                    seconds[kind, d] += crossings.seconds[kind, tensor]
    return Cuts(tensors, seconds)


@compiled
def _extend(
    first_end: int,
    stop: int,
    words: Words,
    ranges: Ranges,
    crossings: Crossings,
    cuts: Cuts,
    after: Ints,
    allowed: Truths,
    limit_s: float,
    found: Loads,
) -> int:
    """Compute the loads of some downsets from those of all before; return how many were compared."""
    compared = 0
    farthest = limit_s * ranges.most_work
    for end in range(first_end, stop):
        for start in range(end - 1, -1, -1):
            if ranges.work[end] - ranges.work[start] > farthest:
                break
            compared += 1
            if not (found.is_open[start] and _is_within(words, start, end)):
                continue
            for move in range(len(ranges.room)):
                load = ranges.seconds[move, end] - ranges.seconds[move, start]
                if (
                    load > limit_s
                    or ranges.missing[move, end] != ranges.missing[move, start]
                    or ranges.nbytes[move, end] - ranges.nbytes[move, start] > ranges.room[move]
                ):
                    continue
                load += _transfers(crossings, cuts, crossings.kind[move], words, start, end)
                if load <= limit_s:
                    _relax(found, allowed, after, start, end, move, load)
    return compared


@inlined
def _is_within(words: Words, start: int, end: int) -> bool:
    """Whether downset `start` is a part of downset `end`."""
    outside = np.uint64(0)
    for word in range(words.shape[1]):
        outside |= words[start, word] & ~words[end, word]
    return bool(outside == 0)


@inlined
def _transfers(
    crossings: Crossings, cuts: Cuts, kind: int, words: Words, start: int, end: int
) -> float:
    """Return the seconds of the tensors that cross the borders of a range."""
    paid: float = cuts.seconds[kind, start] + cuts.seconds[kind, end]
    for word in range(cuts.tensors.shape[1]):
        both = cuts.tensors[start, word] & cuts.tensors[end, word]
        tensor = 64 * word
        while both:
            if both & np.uint64(1):
                touched = np.uint64(0)
                for other in range(words.shape[1]):
                    between = words[end, other] & ~words[start, other]
                    touched |= crossings.touches[tensor, other] & between
                paid -= crossings.seconds[kind, tensor] * (1.0 if touched else 2.0)
            both >>= np.uint64(1)
            tensor += 1
    return paid


@inlined
def _relax(
    found: Loads, allowed: Truths, after: Ints, start: int, end: int, move: int, load: float
) -> None:
    """Take over the loads at `end` that a stage from `start` improves."""
    for state in range(len(after)):
        largest = max(load, found.load[start, state])
        if largest < np.inf:
            there = after[state, move]
            if there >= 0 and allowed[end, there] and largest < found.load[end, there]:
                found.load[end, there] = largest
                found.parent[end, there] = start
                found.move[end, there] = move
                found.is_open[end] = True
