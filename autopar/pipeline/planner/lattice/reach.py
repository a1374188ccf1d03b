"""Downsets that stages of at most some load can reach, under a relaxation that is quick to decide.

A stage between downsets a and b on a move costs, in each of several dims (seconds, bytes), at least
`top[b] - bottom[a]`.  For a limit on each dim, downset b is reached with the devices of state s and of
the move if

    for each dim:   top[b] - max over downsets a within b, reached with s, of bottom[a]  <=  limit

The maximum is taken per dim, perhaps at different a, which is the relaxation.  It passes from downset
to downset along the edges of the lattice, so a limit is decided in one pass over the edges per state
and move, where an exact answer compares all pairs of downsets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.lattice.downsets import Lattice, Small
from autopar.pipeline.planner.lattice.exact import Array
from autopar.pipeline.planner.lattice.order import Ints
from autopar.utils.compiled import compiled

Truths = NDArray[np.bool_]


class Costs(NamedTuple):
    """`top[m, i, d]` and `bottom[m, i, d]` of move m, dim i, downset d.

    No range of move m holds a group g with `blocked[m, g]`.  `done[d]` is work that is surely done in
    downset d, `left[d]` work that is surely left after it.
    """

    top: Array
    bottom: Array
    blocked: Truths
    done: Array
    left: Array


class Devices(NamedTuple):
    """States count the devices taken: move m leads from state s to `after[s, m]`, or -1.

    So does `idle[s, p]` for one device of pool p that does nothing.  A state does at most `capacity[s]`
    of the work of `Costs` per second of load.
    """

    after: Ints
    idle: Ints
    capacity: Array


def reached(lattice: Lattice, costs: Costs, devices: Devices, limits: Array) -> Truths:
    """Return [state, downset]: whether the relaxation reaches it from the empty downset.

    `limits[m, i]` is of move m in dim i; `limits[:, 0]` is on seconds.
    """
    edges = (lattice.first, lattice.lower, lattice.group)
    return _reach(*edges, costs, devices, limits, limits[:, 0].max())


def reaching(lattice: Lattice, costs: Costs, devices: Devices, limits: Array) -> Truths:
    """Return [state, downset]: whether the full downset is reached from it with the devices of a state.

    It is the same question with the lattice upside down.
    """
    last = len(lattice) - 1
    owner = np.repeat(np.arange(len(lattice)), np.diff(lattice.first))
    sequence = np.argsort(last - lattice.lower, kind="stable")
    first = np.searchsorted((last - lattice.lower)[sequence], np.arange(len(lattice) + 1))
    turned = Costs(
        np.ascontiguousarray(-costs.bottom[:, :, ::-1]),
        np.ascontiguousarray(-costs.top[:, :, ::-1]),
        costs.blocked,
        np.ascontiguousarray(costs.left[::-1]),
        np.ascontiguousarray(costs.done[::-1]),
    )
    edges = (first, (last - owner[sequence]).astype(np.int32), lattice.group[sequence])
    found = _reach(*edges, turned, devices, limits, limits[:, 0].max())
    return np.ascontiguousarray(found[:, ::-1])


@compiled
def _reach(
    first: Ints,
    lower: Small,
    group: Small,
    costs: Costs,
    devices: Devices,
    limits: Array,
    most: float,
) -> Truths:
    """Decide all downsets state by state; states are numbered so that moves lead to larger ones."""
    moves, dims, count = costs.top.shape
    states = len(devices.after)
    full = devices.capacity[states - 1]
    found = np.zeros((states, count), np.bool_)
    found[0, 0] = True
    best = np.empty((count, dims))
    for state in range(states):
        for d in range(count):
            room, rest = devices.capacity[state], full - devices.capacity[state]
            if costs.done[d] > most * room or costs.left[d] > most * rest:
                found[state, d] = False
        for move in range(moves):
            after = devices.after[state, move]
            if after < 0:
                continue
            for d in range(count):
                fits = True
                for dim in range(dims):
                    highest = costs.bottom[move, dim, d] if found[state, d] else -np.inf
                    for edge in range(first[d], first[d + 1]):
                        if not costs.blocked[move, group[edge]]:
                            highest = max(highest, best[lower[edge], dim])
                    best[d, dim] = highest
                    if costs.top[move, dim, d] - highest > limits[move, dim]:
                        fits = False
                if fits:
                    found[after, d] = True
        for pool in range(devices.idle.shape[1]):
            after = devices.idle[state, pool]
            if after >= 0:
                for d in range(count):
                    found[after, d] |= found[state, d]
    return found
