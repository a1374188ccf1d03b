"""Merges groups that cost nothing and have one neighbour into that neighbour.

Such leaves (parameters, constants, outputs) multiply the downsets.  No plan becomes worse: the leaf can
always be moved to its neighbour's stage, where it adds no seconds, and its tensor crosses no border.
"""

from __future__ import annotations

import numpy as np

from autopar.pipeline.planner.lattice.additive import AdditiveLoads
from autopar.pipeline.planner.lattice.order import Ints


def contracted(loads: AdditiveLoads) -> AdditiveLoads:
    """Return the loads without leaves that cost nothing, until there are none."""
    while True:
        into = _leaves_merged(loads)
        if into is None:
            return loads
        loads = loads.merged(into)


def _leaves_merged(loads: AdditiveLoads) -> Ints | None:
    """Return the group that stands for each group; None if nothing is merged."""
    covers = loads.order.covers
    adjacent = covers | covers.T
    free = ~loads.seconds.any(axis=0)
    if loads.memory_binds:
        free &= ~loads.nbytes.any(axis=0)
    stands_for = np.arange(len(loads.order))
    kept = np.ones(len(loads.order), dtype=bool)
    for leaf in np.flatnonzero(free & (adjacent.sum(axis=1) == 1)).tolist():
        neighbour = int(adjacent[leaf].argmax())
        if kept[neighbour] and _is_never_worse(loads, leaf, neighbour):
            stands_for[leaf] = neighbour
            kept[leaf] = False
    if kept.all():
        return None
    number = np.cumsum(kept) - 1
    into: Ints = number[stands_for].astype(np.int64)
    return into


def _is_never_worse(loads: AdditiveLoads, leaf: int, neighbour: int) -> bool:
    """Whether the neighbour's moves offer the leaf, and its stage has all tensors of the leaf anyway."""
    offered_less = (loads.missing[:, leaf] > 0) & (loads.missing[:, neighbour] == 0)
    shared = loads.touches.sum(axis=1) > 1
    further = loads.touches[:, leaf] & shared & ~loads.touches[:, neighbour]
    return not (offered_less.any() or further.any())
