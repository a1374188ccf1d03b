"""Arrays of a workload's sums for the kernels, on all downsets of a lattice."""

from __future__ import annotations

import itertools

import numpy as np

from autopar.pipeline.planner.lattice.additive import AdditiveLoads
from autopar.pipeline.planner.lattice.area import priced_work
from autopar.pipeline.planner.lattice.chains import ROUNDING, Crossings, Ranges
from autopar.pipeline.planner.lattice.downsets import Array, Lattice
from autopar.pipeline.planner.lattice.order import Ints
from autopar.pipeline.planner.lattice.reach import Costs, Devices


def ranges_of(loads: AdditiveLoads, lattice: Lattice) -> Ranges:
    """Return the sums per move and downset."""
    return Ranges(
        lattice.sums(loads.seconds),
        lattice.sums(loads.missing),
        lattice.sums(loads.nbytes),
        loads.room * (1 + ROUNDING),
    )


def crossings_of(loads: AdditiveLoads) -> Crossings:
    """Return which tensors each group touches, and what they cost on each pool."""
    touching = loads.touches.sum(axis=1)
    shared = np.flatnonzero((touching > 1) & loads.crossing.any(axis=0))
    groups, tensors = np.nonzero(loads.touches[shared].T)
    kinds, kind = np.unique(loads.crossing[:, shared], axis=0, return_inverse=True)
    return Crossings(
        np.searchsorted(groups, np.arange(len(loads.order) + 1)).astype(np.int64),
        tensors.astype(np.int64),
        touching[shared].astype(np.int64),
        np.ascontiguousarray(kinds),
        kind.reshape(-1).astype(np.int64),
    )


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


def costs_of(loads: AdditiveLoads, lattice: Lattice, ranges: Ranges, prices: Array) -> Costs:
    """Return the costs of ranges without transfers, in seconds and, where memory binds, in bytes."""
    dims = [ranges.seconds, ranges.nbytes][: 2 if loads.memory_binds else 1]
    sums = np.ascontiguousarray(np.stack(dims, axis=1))
    work = priced_work(loads, prices)
    done = lattice.sums(work)
    return Costs(sums, sums, loads.missing > 0, *surely(done, work.sum() - done, work))


def surely(done: Array, left: Array, work: Array) -> tuple[Array, Array]:
    """Return work done and left, less what rounding may have added to the sums."""
    error = ROUNDING * work.sum()
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
