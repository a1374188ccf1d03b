"""Plans where memory depends on what is in flight: on all downsets, or on those near some orders."""

from __future__ import annotations

import math

import numpy as np

from autopar.errors import InfeasibleError
from autopar.pipeline.planner.downsets import Groups, downsets_of, groups_of
from autopar.pipeline.planner.in_flight import least_in_flight
from autopar.pipeline.planner.lattice.area import priced, prices_of
from autopar.pipeline.planner.lattice.downsets import Lattice, lattice_of
from autopar.pipeline.planner.lattice.order import Order
from autopar.pipeline.planner.lattice.sequences import usual_sequences
from autopar.pipeline.planner.loaded_stage import LoadedStage, ThroughputPlan
from autopar.pipeline.planner.workload import Workload

MOST, MOST_NEAR = 2_000, 300
"""Downsets in all, and near one order; time and memory grow with the square of their number."""


def least_load_in_flight(workload: Workload) -> ThroughputPlan:
    """Return the best plan, or with too many downsets a plan and a bound.

    Raises `InfeasibleError` if nothing fits, or if no plan was found.
    """
    groups = groups_of(workload)
    lattice = lattice_of(Order.of([sorted(before) for before in groups.before]), MOST)
    if lattice is not None:
        found = least_in_flight(workload, downsets_of(groups, lattice))
        if not found.stages:
            _refuse(workload, found.ranges, is_proved=True)
        load_s = _load_of(found.stages)
        return ThroughputPlan(
            found.stages, load_s, load_s, len(lattice), found.ranges,
            f"all {len(lattice):,} downsets of the graph",
        )  # fmt: skip
    return _near_orders(workload, groups)


def _near_orders(workload: Workload, groups: Groups) -> ThroughputPlan:
    """Return the best plan on the downsets near each of some topological orders."""
    order = Order.of([sorted(before) for before in groups.before])
    best: tuple[LoadedStage, ...] = ()
    ranges = 0
    for sequence in usual_sequences(order):
        along = groups.along(sequence.tolist())
        lattice = _widest(Order.of([sorted(before) for before in along.before]))
        found = least_in_flight(workload, downsets_of(along, lattice))
        ranges += found.ranges
        if _load_of(found.stages) < _load_of(best):
            best = found.stages
    if not best:
        _refuse(workload, ranges, is_proved=False)
    load_s = _load_of(best)
    return ThroughputPlan(
        best, load_s, min(load_s, spread_bound(workload, groups)), None, ranges,
        "there are too many downsets to enumerate: the plan is the best of those near some orders, the "
        "bound is the work spread evenly",
    )  # fmt: skip


def _widest(order: Order) -> Lattice:
    """Return the downsets near an order, as many as are allowed."""
    width = 1
    best = lattice_of(order.banded(1), len(order) + 1)
    assert best is not None
    while width < len(order):
        width += 1
        wider = lattice_of(order.banded(width), MOST_NEAR)
        if wider is None:
            break
        best = wider
    return best


def spread_bound(workload: Workload, groups: Groups) -> float:
    """Return a bound: the work of all groups spread over all devices, or the longest group's."""
    work = np.full((len(workload.pools), len(groups.members)), np.inf)
    alone = np.full(len(groups.members), np.inf)
    for way in sorted({option.way for layer in workload.layers for option in layer.options}):
        replicas = workload.replicas_of(way)
        if not replicas:
            continue
        seconds = np.array([_least_seconds(workload, layers, way) for layers in groups.members])
        np.minimum(work[way[0]], seconds * way[1], out=work[way[0]])
        np.minimum(alone, seconds / replicas[-1], out=alone)
    prices = prices_of(work, np.array([pool.count for pool in workload.pools], dtype=float))
    return float(max(priced(work, prices).sum(), alone.max()))


def _least_seconds(workload: Workload, layers: tuple[int, ...], way: tuple[int, int]) -> float:
    """Return the seconds of layers on a way with their fastest options; infinite if one has none."""
    return sum(
        min((o.seconds for o in workload.layers[layer].options if o.way == way), default=math.inf)
        for layer in layers
    )


def _load_of(stages: tuple[LoadedStage, ...]) -> float:
    return max((stage.load_s for stage in stages), default=math.inf)


def _refuse(workload: Workload, ranges: int, is_proved: bool) -> None:
    if is_proved and not ranges:
        raise InfeasibleError(
            "no range of layers fits into any pool; raise a pool's memory or count"
        )
    pools = ", ".join(f"{p.name}: {p.count} x {p.memory_nbytes:.4g} bytes" for p in workload.pools)
    remedy = (
        "give more devices or memory, fewer microbatches in flight, or layers an option that keeps "
        "less"
    )
    if is_proved:
        raise InfeasibleError(f"no plan of stages fits into {pools}; {remedy}")
    raise InfeasibleError(
        f"no plan of stages was found that fits into {pools}; whether there is one is not known: "
        f"{remedy}"
    )
