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
    Cuts,
    crossings_of,
    cuts_of,
    places_of,
)


class Sums(NamedTuple):
    """What kernels need of a lattice."""

    ranges: Ranges
    crossings: Crossings
    cuts: Cuts
    costs: Costs


def sums_of(loads: AdditiveLoads, lattice: Lattice, prices: Array, load_s: float) -> Sums:
    """Return the sums over all downsets; a stage is expected to take about `load_s`."""
    work = priced(loads.pool_work, prices)
    rows = np.concatenate([loads.seconds, loads.missing, loads.nbytes, work[None]])
    seconds, missing, nbytes, done = np.split(
        lattice.sums(rows), np.arange(1, 4) * len(loads.moves)
    )
    room = loads.room * (1 + ROUNDING)
    ranges = Ranges(seconds, missing, nbytes, room, done[0], most_work(loads, prices))
    crossings = crossings_of(loads.touches, loads.crossing)
    places = places_of(loads.order, work)
    cuts = cuts_of(lattice, crossings, places, load_s * ranges.most_work)
    signed = cuts.signed[crossings.kind]
    dims = [ranges.seconds + signed, ranges.seconds - signed]
    costs = np.stack([*dims, ranges.nbytes] if loads.memory_binds else dims, axis=1)
    left = ranges.work[-1] - ranges.work
    blocked = loads.missing > 0
    return Sums(ranges, crossings, cuts, Costs(costs, costs, blocked, *surely(ranges.work, left)))


def nbytes_each(loads: AdditiveLoads, states: int) -> int:
    """Return about how many bytes a search takes for each downset, without its edges."""
    moves, dims = len(loads.moves), 3 if loads.memory_binds else 2
    sets = -(-len(loads.order) // 64) + -(-len(loads.touches) // 64)
    return 100 + 8 * (3 * sets + 7 * moves + 4 * moves * dims) + 5 * states


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
