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
AT_ONCE = 2**22
"""Entries of a matrix of ranges by tensors that is computed at once."""


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
    made = [_offer(workload, downsets, way, start, end) for way in ways]
    return [offer for offer in made if len(offer.of)]


def border_seconds(
    workload: Workload, downsets: Downsets, way: tuple[int, int], start: Ints, end: Ints
) -> Array:
    """Return the seconds per microbatch of transfers across the borders of ranges."""
    touches = np.zeros((len(workload.layers), len(workload.tensors)))
    for index, tensor in enumerate(workload.tensors):
        touches[[tensor.source, *tensor.targets], index] = 1
    inside, every = downsets.holds @ touches, touches.sum(axis=0)
    total = np.zeros(len(start))
    if not workload.pools[way[0]].pays_transfers:
        return total
    seconds = tensor_seconds(workload, way[0])
    resent = _resent_seconds(workload, way)
    rows = max(1, AT_ONCE // max(1, len(workload.tensors)))
    for part in (slice(at, at + rows) for at in range(0, len(start), rows)):
        count = inside[end[part]] - inside[start[part]]
        crossing = (count > 0) & (count < every)
        total[part] = crossing @ seconds
        for layer, sent, further in resent:
            holds = downsets.holds[end[part], layer] & ~downsets.holds[start[part], layer]
            total[part] += further * (crossing[:, sent] & holds)
    return total


def _resent_seconds(workload: Workload, way: tuple[int, int]) -> list[tuple[int, int, float]]:
    """Return layers, tensors, and what the layer adds if the tensor crosses its stage's border."""
    found = []
    for index, layer in enumerate(workload.layers):
        resent = next((o.resent for o in layer.options if o.way == way), ())
        for tensor, nbytes in resent:
            trips = workload.tensors[tensor].round_trips
            found.append((index, tensor, trips * nbytes / workload.pools[way[0]].bytes_per_s))
    return found


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
) -> Offers:
    layers = range(len(workload.layers))
    rows = [options_on(workload, layer, way)[1] for layer in layers]
    able = np.array([len(r) > 0 for r in rows])
    missing = downsets.holds @ (~able).astype(int)
    chosen = missing[end] == missing[start]
    start, end = start[chosen], end[chosen]
    free = {at for at in layers if len(rows[at]) > 1 or (rows[at][:, WORKING] > 0).any()}
    fixed = np.array(
        [r[0] if len(r) and at not in free else NOTHING[0] for at, r in enumerate(rows)]
    )
    base = downsets.holds @ fixed
    border = border_seconds(workload, downsets, way, start, end)
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
    flights = flights_of(every, memory)
    fits = flights >= 1
    used, of = np.unique(of[fits], return_inverse=True)
    every, flights = every[fits], flights[fits]
    first = np.searchsorted(of, np.arange(len(used))).astype(np.intp)
    return Offers(
        *way, start[used], end[used], border[used], first, of.astype(np.intp), every[:, 0],
        every[:, 1], flights,
    )  # fmt: skip


def flights_of(rows: Array, memory: float) -> Array:
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
