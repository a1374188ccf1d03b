"""Arrays of a workload's sums for the kernels, on all downsets of a lattice."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from autopar.pipeline.planner.lattice.additive import AdditiveLoads
from autopar.pipeline.planner.lattice.area import priced
from autopar.pipeline.planner.lattice.chains import ROUNDING, Ranges
from autopar.pipeline.planner.lattice.downsets import Lattice
from autopar.pipeline.planner.lattice.exact import Array
from autopar.pipeline.planner.lattice.order import Ints
from autopar.pipeline.planner.lattice.reach import Costs, Devices
from autopar.pipeline.planner.lattice.transfers import (
    Crossings,
    crossings_of,
    places_of,
    signed_cuts,
)


class Sums(NamedTuple):
    """What kernels need of a lattice."""

    ranges: Ranges
    crossings: Crossings
    costs: Costs


def sums_of(loads: AdditiveLoads, lattice: Lattice, prices: Array, load_s: float) -> Sums:
    """Return the sums over all downsets; a stage is expected to take about `load_s`."""
    work = priced(loads.pool_work, prices)
    ranges = Ranges(
        lattice.sums(loads.seconds),
        lattice.sums(loads.missing),
        lattice.sums(loads.nbytes),
        loads.room * (1 + ROUNDING),
        lattice.sums(work),
        most_work(loads, prices),
    )
    crossings = crossings_of(loads.touches, loads.crossing)
    places = places_of(loads.order, work)
    cuts = signed_cuts(lattice, crossings, places, load_s * ranges.most_work)[crossings.kind]
    dims = [ranges.seconds + cuts, ranges.seconds - cuts]
    sums = np.stack([*dims, ranges.nbytes] if loads.memory_binds else dims, axis=1)
    left = ranges.work[-1] - ranges.work
    costs = Costs(sums, sums, loads.missing > 0, *surely(ranges.work, left))
    return Sums(ranges, crossings, costs)


def devices_of(loads: AdditiveLoads, prices: Array) -> Devices:
    """Return the states, which count the devices taken of each pool, and where moves lead."""
    counts = np.array(loads.devices, dtype=np.int64)
    states = np.array(list(itertools.product(*(range(count + 1) for count in counts))))
    steps = np.array([math.prod(counts[pool + 1 :] + 1) for pool in range(len(counts))])

    def after(pool: int, taken: int) -> Ints:
        there = np.arange(len(states)) + taken * steps[pool]
        return np.where(states[:, pool] + taken <= counts[pool], there, -1)

    return Devices(
        np.stack([after(move.pool, move.taken) for move in loads.moves], axis=1),
        np.stack([after(pool, 1) for pool in range(len(counts))], axis=1),
        states @ prices,
    )


def most_work(loads: AdditiveLoads, prices: Array) -> float:
    """Return the most work, at these prices, that a stage does per second of its load."""
    return max((float(prices[move.pool]) * move.taken for move in loads.moves), default=0.0)


def surely(done: Array, left: Array) -> tuple[Array, Array]:
    """Return work done and left, less what rounding may add to a limit on it."""
    error = ROUNDING * (done + left).max()
    return np.maximum(done - error, 0.0), np.maximum(left - error, 0.0)


def limits_of(loads: AdditiveLoads, costs: Costs, limit_s: float) -> Array:
    """Return the limits of each move in each dim, a rounding error higher: bytes are the last dim."""
    limits = np.full(costs.top.shape[:2], limit_s)
    if loads.memory_binds:
        limits[:, -1] = loads.room
    return limits * (1 + ROUNDING)


def numbered_along(loads: AdditiveLoads, sequence: Ints) -> AdditiveLoads:
    """Return the loads with group `sequence[i]` as group i; the sequence is a topological order."""
    into = np.empty(len(sequence), dtype=np.int64)
    into[sequence] = np.arange(len(sequence))
    return loads.merged(into)
