"""Arrays of a workload's sums for the kernels, on all downsets of a lattice."""

from __future__ import annotations

import itertools

import numpy as np

from autopar.pipeline.planner.lattice.additive import AdditiveLoads
from autopar.pipeline.planner.lattice.area import priced_work
from autopar.pipeline.planner.lattice.chains import ROUNDING, Crossings, Ranges
from autopar.pipeline.planner.lattice.downsets import Array, Lattice, packed
from autopar.pipeline.planner.lattice.order import Ints
from autopar.pipeline.planner.lattice.reach import Costs, Devices


def ranges_of(loads: AdditiveLoads, lattice: Lattice, prices: Array) -> Ranges:
    """Return the sums per move and downset, and the work at these prices."""
    taken = np.array([move.taken for move in loads.moves], dtype=float)
    pools = np.array([move.pool for move in loads.moves], dtype=int)
    return Ranges(
        lattice.sums(loads.seconds),
        lattice.sums(loads.missing),
        lattice.sums(loads.nbytes),
        loads.room * (1 + ROUNDING),
        lattice.sums(priced_work(loads, prices)),
        float((prices[pools] * taken).max(initial=0.0)),
    )


def crossings_of(loads: AdditiveLoads) -> Crossings:
    """Return the tensors that can cross a border at some cost; those of the same groups are added up."""
    shared = np.flatnonzero((loads.touches.sum(axis=1) > 1) & loads.crossing.any(axis=0))
    touches, same = np.unique(loads.touches[shared], axis=0, return_inverse=True)
    kinds, kind = np.unique(loads.crossing[:, shared], axis=0, return_inverse=True)
    seconds = np.zeros((len(kinds), len(touches)))
    for at in range(len(kinds)):
        seconds[at] = np.bincount(same.reshape(-1), kinds[at], len(touches))
    return Crossings(packed(touches), seconds, kind.reshape(-1).astype(np.int64))


def devices_of(loads: AdditiveLoads, prices: Array) -> Devices:
    """Return the states, which count the devices taken of each pool, and where moves lead."""
    states = list(itertools.product(*(range(count + 1) for count in loads.devices)))
    number = {state: index for index, state in enumerate(states)}
    after = np.full((len(states), len(loads.moves)), -1, dtype=np.int64)
    for state, index in number.items():
        for at, move in enumerate(loads.moves):
            there = list(state)
            there[move.pool] += move.taken
            after[index, at] = number.get(tuple(there), -1)
    return Devices(after, np.array(states, dtype=float).reshape(len(states), -1) @ prices)


def costs_of(loads: AdditiveLoads, ranges: Ranges) -> Costs:
    """Return the costs of ranges without transfers, in seconds and, where memory binds, in bytes."""
    dims = [ranges.seconds, ranges.nbytes][: 2 if loads.memory_binds else 1]
    sums = np.ascontiguousarray(np.stack(dims, axis=1))
    return Costs(sums, sums, loads.missing > 0, *surely(ranges.work, ranges.work[-1] - ranges.work))


def surely(done: Array, left: Array) -> tuple[Array, Array]:
    """Return work done and left, less what rounding may add to a limit on it."""
    error = ROUNDING * (done + left).max()
    return np.maximum(done - error, 0.0), np.maximum(left - error, 0.0)


def limits_of(loads: AdditiveLoads, costs: Costs, limit_s: float) -> Array:
    """Return the limits of each move in each dim, a rounding error higher."""
    limits = np.stack([np.full(len(loads.moves), limit_s), loads.room], axis=1)
    return np.ascontiguousarray(limits[:, : costs.top.shape[1]] * (1 + ROUNDING))


def numbered_along(loads: AdditiveLoads, sequence: Ints) -> AdditiveLoads:
    """Return the loads with group `sequence[i]` as group i; the sequence is a topological order."""
    into = np.empty(len(sequence), dtype=np.int64)
    into[sequence] = np.arange(len(sequence))
    return loads.merged(into)
