"""Costs of every range between two downsets on every kind of submesh (pool x tensor-parallel degree).

The sum over a range is the difference of the sums over its two downsets.  Only layers with several
undominated options, or with working bytes, need frontiers of sums; these grow one group at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.downsets import Downsets
from autopar.pipeline.planner.frontier import NOTHING, WORKING, Array, added, row, undominated
from autopar.pipeline.planner.workload import Option, Workload

Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Offers:
    """One way on all ranges that offer it; range r goes from downset `start[r]` to `end[r]`.

    `border_s[r]` is the seconds per microbatch of transfers across the borders of range r.  The points
    of range r are the sums on its frontier; `first[r]` is the first of them, and `of[p]` is the range
    of point p.  Per point there are the seconds of compute, the bytes reduced per step, and in
    `flights` the number of microbatches in flight that fit into memory.
    """

    pool: int
    devices: int
    start: Ints
    end: Ints
    border_s: Array
    first: Ints
    of: Ints
    seconds: Array
    reduced: Array
    flights: Array

    def loads(self, workload: Workload, replicas: int) -> Array:
        """Return the seconds per microbatch of each point on this many replicas."""
        whole = (self.seconds + self.border_s[self.of]) / replicas
        return whole + workload.reduce_share(self.pool, replicas) * self.reduced


def offers_of(workload: Workload, downsets: Downsets) -> list[Offers]:
    """Return the costs of each way that a layer offers, on all ranges whose layers all offer it."""
    ways = sorted({option.way for layer in workload.layers for option in layer.options})
    nested = [(start, downsets.above(start)) for start in range(len(downsets) - 1)]
    start = np.concatenate([np.full(len(ends), at) for at, ends in nested]).astype(np.intp)
    end = np.concatenate([ends for _, ends in nested]).astype(np.intp)
    crossing = _crossing(workload, downsets, start, end)
    made = [_offer(workload, downsets, way, start, end, crossing) for way in ways]
    return [offer for offer in made if len(offer.of)]


def _crossing(workload: Workload, downsets: Downsets, start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Return [range, tensor]: whether some but not all layers that touch the tensor are in the range."""
    touches = np.zeros((len(workload.layers), len(workload.tensors)))
    for index, tensor in enumerate(workload.tensors):
        touches[[tensor.source, *tensor.targets], index] = 1
    inside = downsets.holds @ touches
    count = inside[end] - inside[start]
    cut: NDArray[np.bool_] = (count > 0) & (count < touches.sum(axis=0))
    return cut


def border_seconds(
    workload: Workload, way: tuple[int, int], holds: NDArray[np.bool_], crossing: NDArray[np.bool_]
) -> Array:
    """Return the seconds per microbatch of transfers across the borders of ranges.

    `holds[r, l]` is whether range r contains layer l, `crossing[r, t]` whether tensor t crosses its
    borders.
    """
    pool = workload.pools[way[0]]
    total: Array = crossing @ tensor_seconds(workload, way[0])
    if not pool.pays_transfers:
        return total
    for index, layer in enumerate(workload.layers):
        resent = next((o.resent for o in layer.options if o.way == way), ())
        for tensor, nbytes in resent:
            further = workload.tensors[tensor].round_trips * nbytes / pool.bytes_per_s
            total += further * (crossing[:, tensor] & holds[:, index])
    return total


def tensor_seconds(workload: Workload, pool: int) -> Array:
    """Return the seconds per microbatch that each tensor takes if it crosses a border in this pool."""
    there = workload.pools[pool]
    seconds = np.zeros(len(workload.tensors))
    for index, tensor in enumerate(workload.tensors if there.pays_transfers else ()):
        computed = tensor.nbytes / there.bytes_per_s + there.latency_s
        once = computed if tensor.seconds is None else tensor.seconds
        seconds[index] = tensor.round_trips * once
    return seconds


def options_on(workload: Workload, layer: int, way: tuple[int, int]) -> tuple[list[Option], Array]:
    """Return a layer's undominated options of one way, and their rows."""
    options = [option for option in workload.layers[layer].options if option.way == way]
    rows = np.array([row(option) for option in options]).reshape(len(options), 5)
    kept = undominated(rows)
    return [options[index] for index in kept], rows[kept]


def _offer(
    workload: Workload,
    downsets: Downsets,
    way: tuple[int, int],
    start: Ints,
    end: Ints,
    crossing: NDArray[np.bool_],
) -> Offers:
    layers = range(len(workload.layers))
    rows = [options_on(workload, layer, way)[1] for layer in layers]
    able = np.array([len(r) > 0 for r in rows])
    missing = downsets.holds @ (~able).astype(int)
    chosen = missing[end] == missing[start]
    start, end, crossing = start[chosen], end[chosen], crossing[chosen]
    free = {at for at in layers if len(rows[at]) > 1 or (rows[at][:, WORKING] > 0).any()}
    fixed = np.array(
        [r[0] if len(r) and at not in free else NOTHING[0] for at, r in enumerate(rows)]
    )
    base = downsets.holds @ fixed
    holds = downsets.holds[end] & ~downsets.holds[start]
    border = border_seconds(workload, way, holds, crossing)
    memory = workload.pools[way[0]].memory_nbytes
    points: list[Array] = []
    if free:
        grown = _Growing(downsets, rows, free)
        for one, two in zip(start, end, strict=True):
            points.append(grown.range(int(one), int(two)) + (base[two] - base[one]))
    else:
        points = list((base[end] - base[start])[:, None, :])
    of = np.repeat(np.arange(len(points)), [len(p) for p in points]).astype(np.intp)
    every = np.concatenate(points) if points else np.zeros((0, 5))
    flights = _flights(every, memory)
    fits = flights >= 1
    used, of = np.unique(of[fits], return_inverse=True)
    every, flights = every[fits], flights[fits]
    first = np.searchsorted(of, np.arange(len(used))).astype(np.intp)
    return Offers(
        *way, start[used], end[used], border[used], first, of.astype(np.intp), every[:, 0],
        every[:, 1], flights,
    )  # fmt: skip


def _flights(rows: Array, memory: float) -> Array:
    """Return how many microbatches in flight fit into memory; infinity if nothing is kept for them."""
    left = memory - rows[:, 2] - rows[:, WORKING]
    kept = rows[:, 3]
    with np.errstate(divide="ignore", invalid="ignore"):
        many = np.where(kept > 0, np.floor(left / kept), math.inf)
    return np.where(left >= 0, many, 0.0)


class _Growing:
    """Frontiers of ranges, each computed from the range with one group less."""

    def __init__(self, downsets: Downsets, rows: list[Array], free: set[int]) -> None:
        self.downsets, self.rows, self.free = downsets, rows, free
        self.index = {inside: at for at, inside in enumerate(downsets.inside)}
        self.known: dict[tuple[int, int], Array] = {}

    def range(self, start: int, end: int) -> Array:
        """Return the frontier of the free layers between two downsets.

        Fixed layers have no working bytes, so the maximum of these is complete.
        """
        if start == end:
            return NOTHING
        found = self.known.get((start, end))
        if found is None:
            inside = self.downsets.inside
            # Groups are numbered in topological order, so no other group depends on the last one.
            group = max(inside[end] - inside[start])
            found = self.range(start, self.index[inside[end] - {group}])
            for layer in self.downsets.groups.members[group]:
                if layer in self.free:
                    joined = added(found, self.rows[layer])
                    found = joined[undominated(joined)]
            self.known[start, end] = found
        return found
