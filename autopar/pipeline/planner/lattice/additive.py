"""Workloads whose loads are sums over layers, as arrays per group of layers.

A load is a sum if each layer has one option per way and keeps nothing per microbatch in flight.  Then a
stage's memory does not depend on the stages after it, and a *move* (a way on d replicas) costs a range
the sum of its groups' seconds and of the tensors that cross its borders.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autopar.pipeline.planner.downsets import Groups, groups_of
from autopar.pipeline.planner.frontier import KEPT, WORKING
from autopar.pipeline.planner.lattice.exact import Array
from autopar.pipeline.planner.lattice.order import Ints, Order
from autopar.pipeline.planner.offers import options_on, tensor_seconds
from autopar.pipeline.planner.workload import Option, Workload


@dataclass(frozen=True)
class Move:
    """Degree `devices` of a pool, on `replicas` submeshes."""

    pool: int
    devices: int
    replicas: int

    @property
    def taken(self) -> int:
        """The devices of the pool that a stage takes."""
        return self.devices * self.replicas


@dataclass(frozen=True, eq=False)
class AdditiveLoads:
    """Sums per move and group.

    `seconds[m, g]` is per microbatch and 0 where move m does not offer group g; `missing[m, g]` counts
    the layers that it does not offer.  `nbytes[m, g]` is at rest on each device, of at most `room[m]`.
    `touches[t, g]` is whether tensor t is written or read by group g; `crossing[m, t]` is the seconds
    per microbatch if it crosses the border of a stage.  `devices[p]` is the size of pool p.
    """

    order: Order
    members: tuple[tuple[int, ...], ...]
    moves: tuple[Move, ...]
    devices: tuple[int, ...]
    seconds: Array
    missing: Array
    nbytes: Array
    room: Array
    touches: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    crossing: Array

    @property
    def memory_binds(self) -> bool:
        """Whether some device might not hold all groups that it can run."""
        return bool((self.nbytes.sum(axis=1) > self.room).any())

    @property
    def pool_work(self) -> Array:
        """[pool, group]: device-seconds on the pool's cheapest move, infinite where there is none."""
        work = np.full((len(self.devices), len(self.order)), np.inf)
        for move, seconds, missing in zip(self.moves, self.seconds, self.missing, strict=True):
            offered = np.where(missing > 0, np.inf, move.taken * seconds)
            np.minimum(work[move.pool], offered, out=work[move.pool])
        return work

    def merged(self, into: Ints) -> AdditiveLoads:
        """Return the loads in which group `into[g]` stands for each group g."""
        count = int(into.max()) + 1
        members: list[list[int]] = [[] for _ in range(count)]
        for group, layers in enumerate(self.members):
            members[into[group]] += layers
        to = np.zeros((len(into), count))
        to[np.arange(len(into)), into] = 1.0
        return replace(
            self,
            order=self.order.merged(into),
            members=tuple(tuple(sorted(layers)) for layers in members),
            seconds=self.seconds @ to,
            missing=self.missing @ to,
            nbytes=self.nbytes @ to,
            touches=(self.touches @ to) > 0,
        )


def additive_loads(workload: Workload) -> AdditiveLoads | None:
    """Return the sums of a workload, or None if its loads or memory are not sums over layers."""
    steps = workload.microbatches
    every = sum(pool.count for pool in workload.pools)
    if steps is not None and steps < every:
        return None  # the number of replicas is limited, which couples stages
    groups = groups_of(workload)
    ways = sorted({option.way for layer in workload.layers for option in layer.options})
    moves, rows = [], []
    for way in ways:
        chosen = _only_options(workload, way)
        if chosen is None:
            return None
        for move in (Move(*way, replicas) for replicas in workload.replicas_of(way)):
            moves.append(move)
            rows.append(_sums(workload, move, chosen, groups))
    touches = np.zeros((len(workload.tensors), len(groups.members)), dtype=bool)
    group_of = {layer: g for g, layers in enumerate(groups.members) for layer in layers}
    for index, tensor in enumerate(workload.tensors):
        touches[index, [group_of[layer] for layer in (tensor.source, *tensor.targets)]] = True
    sums = np.array(rows).reshape(len(rows), 3, len(groups.members))
    return AdditiveLoads(
        order=Order.of([sorted(before) for before in groups.before]),
        members=groups.members,
        moves=tuple(moves),
        devices=tuple(pool.count for pool in workload.pools),
        seconds=sums[:, 0],
        missing=sums[:, 1],
        nbytes=sums[:, 2],
        room=np.array([workload.pools[move.pool].memory_nbytes for move in moves]),
        touches=touches,
        crossing=np.array([tensor_seconds(workload, m.pool) / m.replicas for m in moves]),
    )


def _only_options(workload: Workload, way: tuple[int, int]) -> list[Option | None] | None:
    """Return the option of each layer on this way, or None if some stage's load is no sum."""
    chosen: list[Option | None] = []
    for layer in range(len(workload.layers)):
        options, rows = options_on(workload, layer, way)
        if len(options) > 1 or rows[:, [KEPT, WORKING]].any():
            return None
        if options and options[0].resent and workload.pools[way[0]].pays_transfers:
            return None
        chosen.append(options[0] if options else None)
    return chosen


def _sums(
    workload: Workload, move: Move, chosen: list[Option | None], groups: Groups
) -> tuple[list[float], list[float], list[float]]:
    """Return seconds, missing layers and bytes of each group."""
    share = workload.reduce_share(move.pool, move.replicas)
    rows: tuple[list[float], list[float], list[float]] = ([], [], [])
    for layers in groups.members:
        options = [option for layer in layers if (option := chosen[layer]) is not None]
        reduced = sum(option.reduced_nbytes for option in options)
        rows[0].append(sum(o.seconds for o in options) / move.replicas + share * reduced)
        rows[1].append(float(len(layers) - len(options)))
        rows[2].append(sum(option.rest_nbytes for option in options))
    return rows
