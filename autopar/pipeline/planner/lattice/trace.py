"""A bound for graphs with too many downsets: downsets of some of the groups, the others relaxed.

A chain of downsets, looked at on chosen groups alone, is a chain of downsets of these.  For a downset A
of the chosen groups, the whole downset has at least all groups that precede one of A, and at most all
that follow none of the chosen groups outside of A.  So a stage from A to B has at least

    (work that surely is in B)  -  (work that may be in A)

which is again a difference of a number per downset.  The work of the other groups is not lost between
stages either: k devices do at most k T of it.  Tensors of the other groups are joined to tensors of the
chosen ones (`joined_tensors`), whose transfers count as in `transfers.py`.  With all groups chosen
nothing is relaxed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.lattice.additive import AdditiveLoads
from autopar.pipeline.planner.lattice.area import priced
from autopar.pipeline.planner.lattice.downsets import Lattice, lattice_of
from autopar.pipeline.planner.lattice.exact import Array
from autopar.pipeline.planner.lattice.order import Ints
from autopar.pipeline.planner.lattice.reach import Costs
from autopar.pipeline.planner.lattice.sums import most_work, surely
from autopar.pipeline.planner.lattice.transfers import (
    Crossings,
    crossings_of,
    places_of,
    signed_cuts,
)

Truths = NDArray[np.bool_]


def largest_trace(loads: AdditiveLoads, work: Array, most: int) -> tuple[Ints, Lattice]:
    """Return groups that together have at most `most` downsets, and these downsets.

    Groups with much work are chosen first, and those that are parallel to few others.
    """
    before = loads.order.before
    parallel = len(work) - 1 - before.sum(axis=0) - before.sum(axis=1)
    first = np.lexsort((-work / np.maximum(parallel, 0.5), parallel > 0))
    low, high = 0, len(first) + 1
    best = first[:0], lattice_of(loads.order.among(first[:0]), 1)
    while high - low > 1:
        middle = (low + high) // 2
        chosen = np.sort(first[:middle])
        lattice = lattice_of(loads.order.among(chosen), most)
        if lattice is None:
            high = middle
        else:
            low, best = middle, (chosen, lattice)
    assert best[1] is not None
    return best[0], best[1]


def trace_costs(
    loads: AdditiveLoads, chosen: Ints, lattice: Lattice, prices: Array, load_s: float
) -> Costs:
    """Return the costs of ranges of the chosen groups, with the least work of all other groups.

    A stage is expected to take about `load_s`.
    """
    work = priced(loads.pool_work, prices)
    weights = np.concatenate([loads.seconds, loads.nbytes, work[None]])
    itself = chosen[:, None] == np.arange(len(work))
    before = (loads.order.before[:, chosen].T | itself).astype(np.float32)
    behind = (loads.order.before[chosen] | itself).astype(np.float32)
    least = np.empty((len(weights), len(lattice)))
    most = np.empty((len(weights), len(lattice)))
    for part, holds in lattice.holds():
        within = holds.astype(np.float32) @ before > 0
        without = (~holds).astype(np.float32) @ behind > 0
        least[:, part] = weights @ within.T
        most[:, part] = weights @ ~without.T
    crossings = joined_tensors(loads, chosen)
    places = places_of(loads.order, work)[chosen]
    cuts = signed_cuts(lattice, crossings, places, load_s * most_work(loads, prices))
    cuts = cuts[crossings.kind]
    moves = len(loads.moves)
    top = [least[:moves] + cuts, least[:moves] - cuts, least[moves:-1]]
    bottom = [most[:moves] + cuts, most[:moves] - cuts, most[moves:-1]]
    dims = 3 if loads.memory_binds else 2
    return Costs(
        np.stack(top[:dims], axis=1),
        np.stack(bottom[:dims], axis=1),
        loads.missing[:, chosen] > 0,
        *surely(least[-1], work.sum() - most[-1]),
    )


def joined_tensors(loads: AdditiveLoads, chosen: Ints) -> Crossings:
    """Return tensors of the chosen groups alone that cross no more than the tensors of all groups.

    If two tensors touch a group and one set of groups holds a part of all others that they touch, it
    cuts one of the two.  So both may be replaced by one that touches these others, with the smaller
    seconds.  Each group that is not chosen is removed so: tensors from before it are joined to tensors
    to behind it, the most expensive first.
    """
    touches = [set(np.flatnonzero(row).tolist()) for row in loads.touches]
    seconds = list(loads.crossing.T)
    for group in sorted(set(range(len(loads.order))) - set(chosen.tolist())):
        here = [at for at, groups in enumerate(touches) if group in groups]
        here.sort(key=lambda at: -seconds[at].max(initial=0.0))
        earlier = [at for at in here if min(touches[at]) < group]
        later = [at for at in here if min(touches[at]) == group]
        for one, other in zip(earlier, later, strict=False):
            touches[one] |= touches[other]
            seconds[one] = np.minimum(seconds[one], seconds[other])
            touches[other] = set()
        for at in here:
            touches[at].discard(group)
    number = {int(group): at for at, group in enumerate(chosen)}
    left = [at for at, groups in enumerate(touches) if len(groups) > 1]
    matrix = np.zeros((len(left), len(chosen)), dtype=bool)
    for row, at in enumerate(left):
        matrix[row, [number[group] for group in touches[at]]] = True
    moves = len(loads.moves)
    return crossings_of(matrix, np.array([seconds[at] for at in left]).reshape(-1, moves).T)
