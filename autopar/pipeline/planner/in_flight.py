"""Least loads where a stage's memory depends on the microbatches in flight, or layers have options.

A stage lies between nested downsets and has one way (pool x degree t), d replicas and one option per
layer.  Its load is (compute + border) / d, plus the share of its gradient reduction over d replicas.
It must hold ceil(s / d) microbatches, where s sums the replicas of this stage and of all later ones.

For a limit T on loads, the least s of all layers after downset i on R devices is

    g(i, R) = min over j, way, d:   s = g(j, R - t d) + d    where s <= d * flights(i, j, way, d, T)

with g(full, R) = 0.  A smaller s is never worse, so one number per state suffices.  g(empty, all) is
finite exactly if some plan has no load above T.  The least T is found by bisection among all loads
that occur.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.downsets import Downsets
from autopar.pipeline.planner.frontier import REDUCED, Array, sums
from autopar.pipeline.planner.loaded_stage import LoadedStage
from autopar.pipeline.planner.offers import Ints, Offers, flights_of, offers_of, options_on
from autopar.pipeline.planner.workload import Workload


class _Move(NamedTuple):
    """A way on d replicas, with the loads of its points."""

    offers: Offers
    replicas: int
    loads: Array


class InFlightStages(NamedTuple):
    """Stages whose largest load is least among the given downsets, and how many ranges were compared."""

    stages: tuple[LoadedStage, ...]
    ranges: int


def least_in_flight(workload: Workload, downsets: Downsets) -> InFlightStages:
    """Return the best stages between these downsets; none if nothing fits."""
    offers = offers_of(workload, downsets)
    ranges = len(
        {(a, b) for o in offers for a, b in zip(o.start.tolist(), o.end.tolist(), strict=True)}
    )
    moves = [m for offer in offers for m in _moves(workload, offer)]
    solver = _Solver(workload, downsets, moves)
    loads = np.unique(np.concatenate([m.loads for m in moves])) if moves else np.zeros(0)
    if not len(loads) or not math.isfinite(solver.fewest(loads[-1])[solver.whole]):
        return InFlightStages((), ranges)
    low, high = -1, len(loads) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if math.isfinite(solver.fewest(loads[middle])[solver.whole]):
            high = middle
        else:
            low = middle
    return InFlightStages(solver.stages(loads[high]), ranges)


def _moves(workload: Workload, offers: Offers) -> list[_Move]:
    way = (offers.pool, offers.devices)
    return [_Move(offers, d, offers.loads(workload, d)) for d in workload.replicas_of(way)]


class _Solver:
    """The recurrence of this module, for any limit on loads."""

    def __init__(self, workload: Workload, downsets: Downsets, moves: list[_Move]) -> None:
        self.workload, self.downsets, self.moves = workload, downsets, moves
        self.shape = tuple(pool.count + 1 for pool in workload.pools)
        self.whole = (0, *(pool.count for pool in workload.pools))
        devices = sum(pool.count for pool in workload.pools)
        steps = workload.microbatches
        self.most = devices if steps is None else min(steps, devices)

    def flights(self, limit: float) -> list[Array]:
        """Return per move and range the most microbatches in flight with no load above the limit.

        Superfluous replicas are dropped: if memory never limits d replicas of a way, more replicas
        only take more devices.
        """
        found = []
        enough: dict[int, NDArray[np.bool_]] = {}
        for move in self.moves:
            usable = np.where(move.loads <= limit, move.offers.flights, 0.0)
            best = np.maximum.reduceat(usable, move.offers.first)
            done = enough.get(id(move.offers))
            if done is not None:
                best[done] = 0.0
            free = move.replicas * best >= self.most
            enough[id(move.offers)] = free if done is None else done | free
            found.append(best)
        return found

    def fewest(self, limit: float) -> Array:
        """Return g, infinite where nothing fits; its first dim is the downset before the stages."""
        g = np.full((len(self.downsets), *self.shape), math.inf)
        g[-1] = 0.0
        usable = [self._usable(m, f) for m, f in zip(self.moves, self.flights(limit), strict=True)]
        for start in range(len(self.downsets) - 2, -1, -1):
            for move, (starts, ends, most) in zip(self.moves, usable, strict=True):
                low, high = np.searchsorted(starts, [start, start + 1])
                if low == high:
                    continue
                taken = move.offers.devices * move.replicas
                there, here = self._shifted(move.offers.pool, taken)
                summed = g[(ends[low:high], *there)] + move.replicas
                summed[summed > most[low:high].reshape(-1, *[1] * len(self.shape))] = math.inf
                at = g[(start, *here)]
                np.minimum(at, summed.min(axis=0), out=at)
        return g

    def _usable(self, move: _Move, flights: Array) -> tuple[Ints, Ints, Array]:
        rows = np.flatnonzero(flights >= 1)
        rows = rows[np.argsort(move.offers.start[rows], kind="stable")]
        most = np.minimum(move.replicas * flights[rows], self.most)
        return move.offers.start[rows], move.offers.end[rows], most

    def _shifted(self, pool: int, taken: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return indices of the states with `taken` fewer devices, and of those that lead to them."""
        there = [slice(None)] * len(self.shape)
        here = list(there)
        there[pool] = slice(None, self.shape[pool] - taken)
        here[pool] = slice(taken, None)
        return tuple(there), tuple(here)

    def stages(self, limit: float) -> tuple[LoadedStage, ...]:
        """Return a plan that attains g(empty, all), with the least loads that memory allows."""
        g, flights = self.fewest(limit), self.flights(limit)
        state, found = self.whole, []
        while state[0] != len(self.downsets) - 1:
            state, stage = self._first_stage(g, flights, state)
            found.append(stage)
        return tuple(found)

    def _first_stage(
        self, g: Array, flights: list[Array], state: tuple[int, ...]
    ) -> tuple[tuple[int, ...], LoadedStage]:
        for move, most in zip(self.moves, flights, strict=True):
            left = list(state)
            left[1 + move.offers.pool] -= move.offers.devices * move.replicas
            if min(left) < 0:
                continue
            for row in np.flatnonzero((move.offers.start == state[0]) & (most >= 1)):
                left[0] = int(move.offers.end[row])
                summed = g[tuple(left)] + move.replicas
                if summed == g[state] and summed <= move.replicas * most[row]:
                    stage = self._stage(move, int(row), int(-(-summed // move.replicas)))
                    return tuple(left), stage
        raise AssertionError("the recurrence has no step that explains its own value")

    def _stage(self, move: _Move, row: int, in_flight: int) -> LoadedStage:
        """Return the stage with the options of least load that leave room for what is in flight."""
        offers = move.offers
        start, end = offers.start[row], offers.end[row]
        layers = np.flatnonzero(self.downsets.holds[end] & ~self.downsets.holds[start]).tolist()
        way = (offers.pool, offers.devices)
        ways = [options_on(self.workload, layer, way) for layer in layers]
        rows, choices = sums([rows for _, rows in ways])
        loads = (rows[:, 0] + offers.border_s[row]) / move.replicas
        loads += self.workload.reduce_share(offers.pool, move.replicas) * rows[:, REDUCED]
        fits = flights_of(rows, self.workload.pools[offers.pool].memory_nbytes) >= in_flight
        best = int(np.where(fits, loads, math.inf).argmin())
        names = tuple(
            options[choice].name for (options, _), choice in zip(ways, choices[best], strict=True)
        )
        return LoadedStage(tuple(layers), names, *way, move.replicas, in_flight, float(loads[best]))
