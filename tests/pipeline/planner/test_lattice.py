"""Stages of least load by the lattice of downsets: against brute force, with every effort."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.errors import InfeasibleError
from autopar.pipeline.planner.lattice.additive import AdditiveLoads, additive_loads
from autopar.pipeline.planner.lattice.contraction import contracted
from autopar.pipeline.planner.lattice.downsets import lattice_of
from autopar.pipeline.planner.lattice.effort import Effort
from autopar.pipeline.planner.lattice.order import Order
from autopar.pipeline.planner.lattice.search import best_split
from autopar.pipeline.planner.lattice.sequences import usual_sequences
from autopar.pipeline.planner.lattice.sums import sums_of
from autopar.pipeline.planner.lattice.trace import largest_trace, trace_costs
from autopar.pipeline.planner.read_dnn_partitioning import read_dnn_partitioning
from autopar.pipeline.planner.throughput import least_load
from autopar.pipeline.planner.workload import Layer, Option, Pool, Tensor, Workload
from tests.pipeline.planner.branching import INCEPTION, layer_graph
from tests.pipeline.planner.brute_force import least_load_by_hand

PARTS = (
    Effort(downsets=1, near=(4, 8), trace=3),
    Effort(downsets=1, near=(2,), trace=10),
    Effort(steps=1, near=(12,)),
)
"""Efforts that enumerate a part of the downsets, or end before anything is proved."""


def random_workload(seed: int) -> Workload:
    """Up to 5 forward layers with branches, often with backward layers, in sizes that often tie.

    Layers cost nothing, run on CPUs only or share a device with others; tensors have several readers;
    memory is ample or scarce; stages may be replicated.
    """
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 6))
    training = count < 5 and bool(random.random() < 0.5)
    edges = [(a, b) for b in range(count) for a in range(b) if random.random() < 0.4]
    replicas = bool(random.random() < 0.3)
    groups = [
        str(int(random.integers(4))) if random.random() < 0.2 else f"g{a}" for a in range(count)
    ]
    layers = [_layer(random, f"layer {a}", groups[a], False) for a in range(count)]
    tensors = _tensors(random, edges)
    if training:
        own = [a for a in range(count) if random.random() < 0.8]
        at = {a: count + index for index, a in enumerate(own)}
        layers += [_layer(random, f"grad {a}", groups[a], True) for a in own]
        back = [(at[b], at[a]) for a, b in edges if a in at and b in at]
        tensors += _tensors(random, back)
        tensors += [Tensor(a, (at[a],), seconds=_few(random)) for a in own if random.random() < 0.5]
        if own and random.random() < 0.3:
            layers.append(_layer(random, "orphan", None, True))
            tensors.append(Tensor(len(layers) - 1, (at[own[0]],), seconds=_few(random)))
    pools = (
        Pool("fast", int(random.integers(1, 4)), _memory(random), 4.0, 0.25, replicas=replicas),
        Pool("cpu", int(random.integers(0, 2)), pays_transfers=False, replicas=False),
    )
    steps = int(random.choice([4, 6, 12])) if replicas else None
    return Workload(tuple(layers), tuple(tensors), pools, steps).check()


def _few(random: np.random.Generator) -> float:
    return float(random.choice([0.0, 0.25, 1.0, 3.0]))


def _memory(random: np.random.Generator) -> float:
    return float(random.choice([math.inf, 8.0, 12.0]))


def _tensors(random: np.random.Generator, edges: list[tuple[int, int]]) -> list[Tensor]:
    """One tensor per source with all its readers, at measured or at computed seconds."""
    readers: dict[int, list[int]] = {}
    for source, target in edges:
        readers.setdefault(source, []).append(target)
    return [
        Tensor(source, tuple(targets), 1.0, seconds=_few(random) if random.random() < 0.7 else None)
        for source, targets in readers.items()
    ]


def _layer(random: np.random.Generator, name: str, group: str | None, back: bool) -> Layer:
    seconds = float(random.choice([0, 0, 1, 2, 3, 5]))
    nbytes = float(random.integers(0, 5))
    kind = "input_grad_s" if back else "forward_s"
    fast = Option(pool=0, rest_nbytes=nbytes, reduced_nbytes=nbytes, **{kind: seconds})
    slow = Option(pool=1, **{kind: 3 * seconds + 1})
    some = [(fast, slow), (fast,), (slow,)][int(random.choice(3, p=[0.7, 0.25, 0.05]))]
    return Layer(name, some, group, back)


def additive(workload: Workload) -> AdditiveLoads:
    loads = additive_loads(workload)
    assert loads is not None
    return loads


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_value_and_bound_are_brute_forces(seed: int) -> None:
    workload = random_workload(seed)
    least = least_load_by_hand(workload)
    if least == math.inf:
        with pytest.raises(InfeasibleError):
            least_load(workload)
        return
    plan = least_load(workload)
    assert plan.load_s == pytest.approx(least, rel=1e-9)
    assert plan.bound_s == plan.load_s == max(stage.load_s for stage in plan.stages)
    layers = sorted(layer for stage in plan.stages for layer in stage.layers)
    assert layers == list(range(len(workload.layers)))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(PARTS))
def test_bounds_hold_when_the_search_is_not_complete(seed: int, effort: Effort) -> None:
    workload = random_workload(seed)
    least = least_load_by_hand(workload)
    try:
        plan = least_load(workload, effort)
    except InfeasibleError as error:
        assert least == math.inf or "not known" in str(error)
        return
    assert plan.bound_s <= least * (1 + 1e-9) and least <= plan.load_s * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8))
def test_relaxed_ranges_cost_at_most_what_ranges_cost(seed: int, most: int) -> None:
    """Of the chosen groups alone, in every dim: what `reach.py` relies upon."""
    loads = additive(random_workload(seed))
    if (loads.missing > 0).all(axis=0).any() or not loads.moves:
        return
    prices = np.ones(len(loads.devices)) / sum(loads.devices)
    chosen, part = largest_trace(loads, loads.seconds.max(axis=0), most)
    costs = trace_costs(loads, chosen, part, prices, 2.0)
    whole = lattice_of(loads.order, 1000)
    assert whole is not None
    exact = sums_of(loads, whole, prices, 2.0)
    holds = np.concatenate([rows for _, rows in whole.holds()])
    trace = {
        rows.tobytes(): at for at, rows in enumerate(np.concatenate([r for _, r in part.holds()]))
    }
    for a, b in itertools.product(range(len(whole)), repeat=2):
        if (holds[a] <= holds[b]).all():
            inside = holds[b] & ~holds[a]
            cost = _cost(loads, inside)
            one, two = (trace[holds[d][chosen].tobytes()] for d in (a, b))
            for move in range(len(loads.moves)):
                relaxed = costs.top[move, :2, two] - costs.bottom[move, :2, one]
                finer = exact.costs.top[move, :2, b] - exact.costs.bottom[move, :2, a]
                assert max(relaxed) <= cost[move] + 1e-9 and max(finer) <= cost[move] + 1e-9


def _cost(loads: AdditiveLoads, inside: Any) -> Any:
    touched = (loads.touches & inside).sum(axis=1)
    crosses = (touched > 0) & (touched < loads.touches.sum(axis=1))
    return loads.seconds @ inside + loads.crossing @ crosses


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_all_downsets_are_enumerated(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 9))
    order = Order.of([[a for a in range(b) if random.random() < 0.3] for b in range(count)])
    every = {
        bits
        for bits in itertools.product([False, True], repeat=count)
        if all(bits[a] or not bits[b] for a, b in zip(*np.nonzero(order.before), strict=True))
    }
    lattice = lattice_of(order, 1000)
    assert lattice is not None
    holds = np.concatenate([rows for _, rows in lattice.holds()])
    assert {tuple(row.tolist()) for row in holds} == every and len(lattice) == len(every)
    neighbours = sum(sum(a) + 1 == sum(b) and all(x <= y for x, y in zip(a, b, strict=True))
                     for a in every for b in every)  # fmt: skip
    assert len(lattice.lower) == neighbours
    for end in range(len(lattice)):
        for edge in range(lattice.first[end], lattice.first[end + 1]):
            assert lattice.groups(int(lattice.lower[edge]), end).tolist() == [lattice.group[edge]]
    assert lattice_of(order, len(every)) is not None
    assert len(every) == 1 or lattice_of(order, len(every) - 1) is None
    for sequence in usual_sequences(order):
        places = np.argsort(sequence)
        assert all(places[a] < places[b] for a, b in zip(*np.nonzero(order.before), strict=True))


def test_orders_near_a_sequence_lie_between_it_and_the_order() -> None:
    free = Order.of([[] for _ in range(8)])
    counts = []
    for width in range(1, 9):
        lattice = lattice_of(free.banded(width), 1000)
        assert lattice is not None
        counts.append(len(lattice))
    assert counts[0] == 9 and counts[-1] == 256 and counts == sorted(set(counts))


def test_leaves_that_cost_nothing_are_merged() -> None:
    """Fifty weights of one layer have 2**50 downsets."""
    weights = [Layer(f"weight {at}", (Option(rest_nbytes=1.0),)) for at in range(50)]
    layers = (
        *weights,
        Layer("matmul", (Option(forward_s=2.0),)),
        Layer("norm", (Option(forward_s=1.0),)),
    )
    weights_read = (Tensor(at, (50,), seconds=1.0) for at in range(50))
    tensors = (*weights_read, Tensor(50, (51,), seconds=0.5))
    workload = Workload(layers, tensors, (Pool("gpu", 2, 100.0, replicas=False),)).check()
    plan = least_load(workload)
    assert plan.downsets == 3 and plan.load_s == plan.bound_s == 2.5
    assert plan.stages[0].layers == tuple(range(51))
    # Where memory is scarce a weight might have to be elsewhere, so it is not merged.
    scarce = replace(workload, pools=(Pool("gpu", 2, 49.0, replicas=False),))
    assert len(contracted(additive(scarce)).order) == 52
    assert len(contracted(additive(workload)).order) == 2


def test_too_many_downsets_give_a_plan_and_a_bound() -> None:
    """Forty layers side by side have 2**40 downsets; their work spreads evenly."""
    layers = tuple(Layer(str(at), (Option(forward_s=1.0 + at % 3),)) for at in range(40))
    workload = Workload(layers, (), (Pool("gpu", 4, replicas=False),)).check()
    plan = least_load(workload, Effort(downsets=1000, near=(500,), trace=500))
    assert plan.downsets is None and "too many downsets" in plan.method
    assert plan.bound_s <= plan.load_s <= 1.06 * plan.bound_s
    assert plan.bound_s == pytest.approx(sum(o.seconds for l in layers for o in l.options) / 4)


@pytest.mark.thorough
def test_a_branching_graph_is_solved_whole() -> None:
    """Some modules of Inception, trained: proved; a search on a part has a bound and a plan near it."""
    shape = (*INCEPTION[:3], *INCEPTION[4:6], *INCEPTION[-2:])
    workload = read_dnn_partitioning(json.dumps(layer_graph(shape, training=True, devices=4)))
    plan = least_load(workload)
    assert plan.gap == 0 and plan.downsets is not None and plan.downsets > 10_000
    part = best_split(additive(workload), Effort(downsets=100, near=(500,), trace=2000))
    assert part.bound_s <= plan.load_s * (1 + 1e-9) <= part.load_s * (1 + 2e-9)
    assert part.load_s < 1.02 * part.bound_s


def test_the_same_effort_gives_the_same_plan() -> None:
    workload = read_dnn_partitioning(json.dumps(layer_graph(INCEPTION[:6], seed=3)))
    effort = Effort(downsets=100, near=(200,), trace=200)
    assert least_load(workload, effort) == least_load(workload, effort)


def test_messages_name_what_does_not_fit() -> None:
    gpu, cpu = Option(forward_s=1.0, rest_nbytes=3.0), Option(pool=1, forward_s=1.0)
    pools = (Pool("gpu", 2, 4.0, replicas=False), Pool("cpu", 0, replicas=False))

    def refused(*layers: Layer) -> str:
        with pytest.raises(InfeasibleError) as raised:
            least_load(Workload(layers, (), pools).check())
        return str(raised.value)

    fits = Layer("fits", (gpu,))
    assert "no pool with devices runs 'host'" in refused(fits, Layer("host", (cpu,)))
    large = Layer("large", (replace(gpu, rest_nbytes=5.0),))
    assert "'large' needs 5 bytes, more than any device" in refused(fits, large)
    both = refused(fits, *(Layer(str(a), (gpu, cpu), "g") for a in range(3)))
    assert "'0' and '1' and 1 more, which share a stage needs 9 bytes" in both
    assert "the layers take at least 9 bytes" in refused(*(Layer(str(a), (gpu,)) for a in range(3)))
