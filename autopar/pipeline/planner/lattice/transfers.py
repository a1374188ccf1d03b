"""Transfers of stages: exactly per range, and in part as a difference of sums for the relaxation.

A tensor that one end of a range [a, b) cuts and the other does not crosses the range's border.  So for
any signs of the tensors, the transfers of the range take at least

    cut(b) - cut(a)   with   cut(d) = sum over the tensors cut by downset d of sign * seconds

which `reach.py` can count.  The ends of a stage are about a stage's work apart.  So the sign of a tensor
changes with each stage's work before it: where b cuts tensors of positive sign, a cuts those of
negative sign, and all of them count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.lattice.additive import AdditiveLoads
from autopar.pipeline.planner.lattice.downsets import (
    Lattice,
    Small,
    Words,
    packed,
    unpacked,
)
from autopar.pipeline.planner.lattice.exact import Array, rounded_down
from autopar.pipeline.planner.lattice.order import Ints, Order
from autopar.utils.compiled import compiled


class Crossings(NamedTuple):
    """Groups `touches[t]` touch tensor t; where it crosses, move m pays `seconds[kind[m], t]`.

    The seconds are rounded down, so that their sums are exact in any order.
    """

    touches: Words
    seconds: Array
    kind: Ints


class Cuts(NamedTuple):
    """The tensors that each downset cuts, as bits, and sums of their seconds by kind of move.

    In `signed` they are added with signs.
    """

    tensors: Words
    seconds: Array
    signed: Array


def tensors_merged(loads: AdditiveLoads) -> AdditiveLoads:
    """Return the loads with the tensors that can cross; those of the same groups are added up."""
    crossing = (loads.touches.sum(axis=1) > 1) & loads.crossing.any(axis=0)
    touches, same = np.unique(loads.touches[crossing], axis=0, return_inverse=True)
    seconds = np.zeros((len(loads.moves), len(touches)))
    for move, each in enumerate(loads.crossing[:, crossing]):
        seconds[move] = np.bincount(same.reshape(-1), each, len(touches))
    return replace(loads, touches=touches, crossing=seconds)


def crossings_of(touches: NDArray[np.bool_], crossing: Array) -> Crossings:
    """Return tensors whose seconds are given per move, for the kernels."""
    kinds, kind = np.unique(crossing, axis=0, return_inverse=True)
    seconds = np.array([rounded_down(each) for each in kinds]).reshape(kinds.shape)
    return Crossings(packed(touches), seconds, kind.reshape(-1).astype(np.int64))


def places_of(order: Order, work: Array) -> Array:
    """Return for each group about how much work precedes it in a sequence of all groups."""
    places: Array = (work @ order.before + work.sum() - order.before @ work) / 2
    return places


def cuts_of(lattice: Lattice, crossings: Crossings, places: Array, stage_work: float) -> Cuts:
    """Return the tensors that each downset cuts.

    Group g comes after the work `places[g]`, of which a stage does about `stage_work`.
    """
    touches = unpacked(crossings.touches, len(places))
    middles = (touches @ places) / np.maximum(touches.sum(axis=1), 1)
    signs = 1.0 - 2.0 * (np.rint(middles / max(stage_work, 1e-300)) % 2)
    groups, tensors = np.nonzero(touches.T)
    first = np.searchsorted(groups, np.arange(len(places) + 1))
    seconds = np.concatenate([crossings.seconds, crossings.seconds * signs])
    bits, sums = _cut(
        lattice.first, lattice.lower, lattice.group, lattice.words, first, tensors,
        crossings.touches, seconds,
    )  # fmt: skip
    return Cuts(bits, *np.split(sums, 2))


@compiled
def _cut(
    first: Ints,
    lower: Small,
    group: Small,
    words: Words,
    touched_first: Ints,
    touched: Ints,
    touches: Words,
    seconds: Array,
) -> tuple[Words, Array]:
    """Compute the tensors that each downset cuts, and their sums, from those of a lower neighbour."""
    kinds, count = seconds.shape
    bits = np.zeros((len(words), (count + 63) // 64), np.uint64)
    sums = np.zeros((kinds, len(words)))
    for d in range(1, len(words)):
        below, added = lower[first[d]], group[first[d]]
        for word in range(bits.shape[1]):
            bits[d, word] = bits[below, word]
        for kind in range(kinds):
            sums[kind, d] = sums[kind, below]
        for at in range(touched_first[added], touched_first[added + 1]):
            tensor = touched[at]
            was, outside = np.uint64(0), np.uint64(0)
            for word in range(words.shape[1]):
                was |= touches[tensor, word] & words[below, word]
                outside |= touches[tensor, word] & ~words[d, word]
            if (was == 0) == (outside == 0):
                continue
            bits[d, tensor >> 6] ^= np.uint64(1) << np.uint64(tensor & 63)
            for kind in range(kinds):
                sums[kind, d] += seconds[kind, tensor] if was == 0 else -seconds[kind, tensor]
    return bits, sums
