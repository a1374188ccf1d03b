"""Transfers of stages: exactly per range, and in part as a difference of sums for the relaxation.

A tensor that one end of a range [a, b) cuts and the other does not crosses the range's border.  So for
any signs of the tensors, the transfers of the range take at least

    cut(b) - cut(a)   with   cut(d) = sum over the tensors cut by downset d of sign * seconds

which `reach.py` can count.  The ends of a stage are about a stage's work apart.  So the sign of a tensor
changes with each stage's work before it: where b cuts tensors of positive sign, a cuts those of
negative sign, and all of them count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    """Groups `touches[t]` touch tensor t; where it crosses, move m pays `seconds[kind[m], t]`."""

    touches: Words
    seconds: Array
    kind: Ints


def crossings_of(touches: NDArray[np.bool_], crossing: Array) -> Crossings:
    """Return the tensors that can cross a border at some cost; those of the same groups are added up.

    `touches[t, g]` is whether group g touches tensor t, `crossing[m, t]` are its seconds on move m.
    """
    shared = np.flatnonzero((touches.sum(axis=1) > 1) & crossing.any(axis=0))
    touches, same = np.unique(touches[shared], axis=0, return_inverse=True)
    kinds, kind = np.unique(crossing[:, shared], axis=0, return_inverse=True)
    seconds = np.zeros((len(kinds), len(touches)))
    for at in range(len(kinds)):
        seconds[at] = np.bincount(same.reshape(-1), kinds[at], len(touches))
    return Crossings(packed(touches), seconds, kind.reshape(-1).astype(np.int64))


def places_of(order: Order, work: Array) -> Array:
    """Return for each group about how much work precedes it in a sequence of all groups."""
    places: Array = (work @ order.before + work.sum() - order.before @ work) / 2
    return places


def signed_cuts(lattice: Lattice, crossings: Crossings, places: Array, stage_work: float) -> Array:
    """Return [kind, downset]: the signed seconds of the tensors that each downset cuts.

    Group g comes after the work `places[g]`, of which a stage does about `stage_work`.
    """
    touches = unpacked(crossings.touches, len(places))
    middles = (touches @ places) / np.maximum(touches.sum(axis=1), 1)
    signs = 1.0 - 2.0 * (np.rint(middles / max(stage_work, 1e-300)) % 2)
    seconds = np.array([rounded_down(kind) for kind in crossings.seconds]) * signs
    groups, tensors = np.nonzero(touches.T)
    first = np.searchsorted(groups, np.arange(len(places) + 1))
    return _sum_cuts(
        lattice.first, lattice.lower, lattice.group, lattice.words, first, tensors,
        crossings.touches, seconds,
    )  # fmt: skip


@compiled
def _sum_cuts(
    first: Ints,
    lower: Small,
    group: Small,
    words: Words,
    touched_first: Ints,
    touched: Ints,
    touches: Words,
    seconds: Array,
) -> Array:
    """Compute the sum of each downset from that of a lower neighbour."""
    kinds = len(seconds)
    sums = np.zeros((kinds, len(words)))
    for d in range(1, len(words)):
        below, added = lower[first[d]], group[first[d]]
        for kind in range(kinds):
            sums[kind, d] = sums[kind, below]
        for at in range(touched_first[added], touched_first[added + 1]):
            tensor = touched[at]
            was, outside = np.uint64(0), np.uint64(0)
            for word in range(words.shape[1]):
                was |= touches[tensor, word] & words[below, word]
                outside |= touches[tensor, word] & ~words[d, word]
            for kind in range(kinds):
                if was == 0:
                    sums[kind, d] += seconds[kind, tensor]
                if outside == 0:
                    sums[kind, d] -= seconds[kind, tensor]
    return sums
