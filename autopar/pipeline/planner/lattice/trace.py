"""A bound for graphs with too many downsets: downsets of some of the groups, the others relaxed.

A chain of downsets, looked at on chosen groups alone, is a chain of downsets of these.  For a downset A
of the chosen groups, the whole downset has at least all groups that precede one of A, and at most all
that follow none of the chosen groups outside of A.  So a stage from A to B has at least

    (work that surely is in B)  -  (work that may be in A)

which is again a difference of a number per downset.  The work of the other groups is not lost between
stages either: k devices cannot do more than k T of it.  With all groups chosen nothing is relaxed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.lattice.additive import AdditiveLoads
from autopar.pipeline.planner.lattice.area import priced_work
from autopar.pipeline.planner.lattice.downsets import Array, Lattice, lattice_of
from autopar.pipeline.planner.lattice.reach import Costs
from autopar.pipeline.planner.lattice.sums import surely


def largest_trace(
    loads: AdditiveLoads, prices: Array, most: int
) -> tuple[NDArray[np.int64], Lattice]:
    """Return the groups with the most work that together have at most `most` downsets, and these."""
    heaviest = np.argsort(-priced_work(loads, prices), kind="stable")
    low, high = 0, len(heaviest) + 1
    best = np.sort(heaviest[:0]), lattice_of(loads.order.among(heaviest[:0]), 1)
    while high - low > 1:
        middle = (low + high) // 2
        chosen = np.sort(heaviest[:middle])
        lattice = lattice_of(loads.order.among(chosen), most)
        if lattice is None:
            high = middle
        else:
            low, best = middle, (chosen, lattice)
    chosen, lattice = best
    assert lattice is not None
    return chosen, lattice


def trace_costs(
    loads: AdditiveLoads, chosen: NDArray[np.int64], lattice: Lattice, prices: Array
) -> Costs:
    """Return the costs of ranges of the chosen groups, with the least work of all other groups."""
    work = priced_work(loads, prices)
    dims = np.stack([loads.seconds, loads.nbytes] if loads.memory_binds else [loads.seconds], axis=1)
    weights = np.concatenate([dims.reshape(-1, len(work)), work[None]])
    before = loads.order.before[:, chosen].T | (chosen[:, None] == np.arange(len(work)))
    behind = loads.order.before[chosen] | (chosen[:, None] == np.arange(len(work)))
    least = np.empty((len(weights), len(lattice)))
    most = np.empty((len(weights), len(lattice)))
    for part, holds in lattice.holds():
        within = holds.astype(np.float32) @ before.astype(np.float32) > 0
        without = (~holds).astype(np.float32) @ behind.astype(np.float32) > 0
        least[:, part] = weights @ within.T
        most[:, part] = weights @ ~without.T
    shape = (*dims.shape[:2], len(lattice))
    return Costs(
        least[:-1].reshape(shape),
        most[:-1].reshape(shape),
        loads.missing[:, chosen] > 0,
        *surely(least[-1], work.sum() - most[-1]),
    )
