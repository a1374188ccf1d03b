"""The least load against brute force over sets, replicas and options; contraction; text forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autopar.errors import InfeasibleError, PlanError
from autopar.pipeline.planner import in_flight_plan
from autopar.pipeline.planner.downsets import groups_of
from autopar.pipeline.planner.evaluate import Split, max_load
from autopar.pipeline.planner.in_flight_plan import least_load_in_flight
from autopar.pipeline.planner.read_dnn_partitioning import read_dnn_partitioning
from autopar.pipeline.planner.read_piper import read_piper
from autopar.pipeline.planner.throughput import least_load
from autopar.pipeline.planner.workload import Layer, Option, Pool, Tensor, Workload
from autopar.pipeline.planner.workload_text import from_json, to_json, to_text
from tests.pipeline.planner.equal import least_equal_load


def random_workload(seed: int) -> Workload:
    """Up to 4 layers with branches, two pools, degrees 1 and 2, recompute, colocation."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 5))
    edges = [
        (a, b)
        for a in range(count)
        for b in range(a + 1, count)
        if b == a + 1 or random.random() < 0.3
    ]
    tensors = tuple(
        Tensor(a, (b,), float(random.integers(0, 8)), int(random.integers(1, 3))) for a, b in edges
    )
    layers = []
    for at in range(count):
        options = [_option(random, tensors, at, devices) for devices in (1, 1, 2)]
        options[1] = replace(options[1], resent=options[0].resent)
        if random.random() < 0.5:
            options.append(Option("slow", 1, forward_s=float(random.integers(1, 40))))
        layers.append(
            Layer(f"layer {at}", tuple(options), "pair" if random.random() < 0.2 else None)
        )
    pools = (
        Pool("fast", 3, float(random.integers(10, 60)), 4.0, 0.25),
        Pool("cpu", 1, pays_transfers=False, replicas=False),
    )
    steps = [None, 2, 4, 6][int(random.integers(4))]
    return Workload(tuple(layers), tensors, pools, steps).check()


def _option(
    random: np.random.Generator, tensors: tuple[Tensor, ...], at: int, devices: int
) -> Option:
    forward, input_grad, rest, kept, working, reduced = random.integers(0, 9, size=6)
    resent = tuple(
        (index, float(random.integers(0, 4)))
        for index, tensor in enumerate(tensors)
        if at in (tensor.source, *tensor.targets)
    )
    return Option(
        f"way {random.integers(9)}", 0, devices, float(forward), float(input_grad), 0.5,
        float(rest), float(kept), float(working), float(reduced), resent,
    )  # fmt: skip


def every_split(workload: Workload) -> Iterator[list[Split]]:
    """Layers to stages in any way that goes forward; degrees, replicas and options as they come."""
    count = len(workload.layers)
    most = sum(pool.count for pool in workload.pools)
    for stages in range(1, min(count, most) + 1):
        for places in itertools.product(range(stages), repeat=count):
            onward = all(places[a] <= places[b] for a, b in workload.edges)
            pairs = {
                layer.group: place for layer, place in zip(workload.layers, places, strict=True)
            }
            together = all(
                layer.group is None or pairs[layer.group] == place
                for layer, place in zip(workload.layers, places, strict=True)
            )
            if onward and together and len(set(places)) == stages:
                parts = [[l for l in range(count) if places[l] == s] for s in range(stages)]
                yield from map(list, itertools.product(*(_stages(workload, p) for p in parts)))


def _stages(workload: Workload, layers: list[int]) -> list[Split]:
    made = []
    for way in {option.way for layer in workload.layers for option in layer.options}:
        pool = workload.pools[way[0]]
        choices = [[(l, o) for o in workload.layers[l].options if o.way == way] for l in layers]
        most = pool.count // way[1] if pool.replicas else 1
        for replicas in range(1, most + 1):
            if workload.microbatches is None or workload.microbatches % replicas == 0:
                made += [Split(options, replicas) for options in itertools.product(*choices)]
    return made


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_least_load_is_brute_forces(seed: int) -> None:
    workload = random_workload(seed)
    if len(workload.layers) > 3:
        workload = replace(
            workload, layers=tuple(replace(l, options=l.options[:2]) for l in workload.layers)
        )
    least = min((max_load(workload, splits) for splits in every_split(workload)), default=math.inf)
    if least == math.inf:
        with pytest.raises(InfeasibleError):
            least_load(workload)
        return
    plan = least_load(workload)
    assert plan.load_s == pytest.approx(least)
    assert sorted(l for stage in plan.stages for l in stage.layers) == list(
        range(len(workload.layers))
    )
    assert from_json(to_json(workload)) == workload


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_bounds_hold_near_orders(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with too many downsets: only those near some orders are searched."""
    monkeypatch.setattr(in_flight_plan, "MOST", 1)
    monkeypatch.setattr(in_flight_plan, "MOST_NEAR", 5)
    workload = random_workload(seed)
    workload = replace(
        workload, layers=tuple(replace(l, options=l.options[:2]) for l in workload.layers)
    )
    least = min((max_load(workload, splits) for splits in every_split(workload)), default=math.inf)
    try:
        plan = least_load_in_flight(workload)
    except InfeasibleError as error:
        assert "not known" in str(error)
        return
    assert plan.downsets is None and plan.bound_s <= least * (1 + 1e-9)
    assert least <= plan.load_s * (1 + 1e-9)


def test_many_layers_side_by_side_that_keep_bytes() -> None:
    """Two to the 30 downsets: a plan and a bound."""
    layers = tuple(
        Layer(str(at), (Option(forward_s=1.0 + at % 4, kept_nbytes=1.0),)) for at in range(30)
    )
    workload = Workload(layers, (), (Pool("gpu", 4, 100.0, replicas=False),), 8).check()
    plan = least_load(workload)
    assert plan.downsets is None and "too many downsets" in plan.method
    assert plan.bound_s == pytest.approx(sum(1.0 + at % 4 for at in range(30)) / 4)
    assert plan.bound_s <= plan.load_s <= 1.05 * plan.bound_s


def test_backward_layers_follow_their_groups() -> None:
    """Forward a -> b, gradients b' -> a': one group each, and no cycle between them."""
    option = (Option(forward_s=1.0),)
    layers = (
        Layer("a", option, "a"), Layer("b", option, "b"),
        Layer("b'", option, "b", True), Layer("a'", option, "a", True),
    )  # fmt: skip
    tensors = (Tensor(0, (1,)), Tensor(1, (2,)), Tensor(2, (3,)))
    workload = Workload(layers, tensors, (Pool("gpu", 2, replicas=False),)).check()
    assert groups_of(workload).members == ((0, 3), (1, 2))
    assert least_load(workload).load_s == 2.0
    # What waits for each other through a group is one stage.
    tied = replace(
        workload,
        layers=(*layers[:2], Layer("c", option, "a")),
        tensors=(Tensor(0, (1,)), Tensor(1, (2,))),
    )
    assert groups_of(tied.check()).members == ((0, 1, 2),)


def test_a_group_of_backward_layers_only_is_ordered_by_its_gradients() -> None:
    option = (Option(forward_s=1.0),)
    layers = (
        Layer("a", option, "a"),
        Layer("a'", option, "a", True),
        Layer("x'", option, "x", True),
    )
    workload = Workload(layers, (Tensor(2, (1,)),), (Pool("gpu", 2, replicas=False),)).check()
    assert groups_of(workload).members == ((0, 1), (2,))
    assert groups_of(workload).before == (frozenset(), frozenset({0}))


def test_equal_stages_are_never_better() -> None:
    option = (Option(forward_s=1.0, kept_nbytes=1.0),)
    layers = tuple(Layer(str(at), option) for at in range(5))
    tensors = tuple(Tensor(at, (at + 1,)) for at in range(4))
    workload = Workload(layers, tensors, (Pool("gpu", 4, 4.0),), 4).check()
    equal = least_equal_load(workload, [1, 2, 3])
    assert least_load(workload).load_s <= equal < math.inf


PIPER = """{"maxDevices": 2, "maxMemoryPerDevice": 9, "bandwidth": 2, "mbsInBatch": 4,
 "nodes": [{"id": 7, "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 3, "parameterSize": 2,
   "memoryUsageA": 1, "memoryUsageB": 2, "syncTimeFw": {}, "syncTimeBw": {"9": 1}}]}},
  {"id": 9, "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 2, "parameterSize": 2,
   "memoryUsageA": 1, "memoryUsageB": 2, "syncTimeFw": {"7": 1}, "syncTimeBw": {}}]}}],
 "edges": [{"sourceId": 7, "destId": 9, "communicationCost": 1}]}"""


def test_piper_by_hand() -> None:
    """Apart: 3 + 2 (1 + 1) / 2 = 5; both replicated: 5 / 2 + 4 / 2 * 4 / (2 * 4) = 3.5."""
    assert least_load(read_piper(PIPER)).load_s == pytest.approx(3.5)
    # Replicated they keep 2 + 2 and rest 4: in 7 bytes they must come apart.
    assert least_load(read_piper(PIPER, memory_nbytes=5.5)).load_s == pytest.approx(5.0)
    with pytest.raises(PlanError, match="not an input of Piper"):
        read_piper('{"nodes": 3}')


def test_dnn_partitioning_by_hand() -> None:
    node = (
        '{"id": %d, "supportedOnFpga": 1, "cpuLatency": %d, "fpgaLatency": 2, "isBackwardNode": 0}'
    )
    text = (
        '{"maxSizePerFPGA": 1, "maxFPGAs": 2, "maxCPUs": 1, "nodes": ['
        + ", ".join(node % (at, 4 if at == 0 else 90) for at in range(3))
        + '], "edges": [{"sourceId": 0, "destId": 1, "cost": 1}'
        ', {"sourceId": 0, "destId": 2, "cost": 1}'
        ', {"sourceId": 1, "destId": 2, "cost": 0}]}'
    )
    # The CPU takes the first layer for 4 ms; what crosses twice is paid once a device.
    assert least_load(read_dnn_partitioning(text)).load_s == pytest.approx(3e-3 + 1e-3)
    with pytest.raises(PlanError, match="different costs"):
        read_dnn_partitioning(text.replace('"destId": 2, "cost": 1', '"destId": 2, "cost": 2'))
    with pytest.raises(PlanError, match="not an input of dnn-partitioning"):
        read_dnn_partitioning("[]")


def test_workloads_are_checked() -> None:
    workload = random_workload(1)
    layer = workload.layers[0]

    def lonely(*options: Option) -> Workload:
        return Workload((Layer("a", options),), (), workload.pools)

    with pytest.raises(PlanError, match="cycle"):
        replace(
            workload,
            layers=(layer, replace(layer, name="b")),
            tensors=(Tensor(0, (1,)), Tensor(1, (0,))),
        ).check()
    for changed, words in (
        (replace(workload, layers=()), "at least one layer"),
        (replace(workload, microbatches=0), "0 microbatches"),
        (replace(workload, layers=(layer, layer), tensors=()), "two layers"),
        (lonely(), "no option"),
        (lonely(Option(pool=5)), "names pool 5"),
        (lonely(Option(forward_s=-1)), "negative"),
        (lonely(Option(resent=((3, 1.0),))), "does not exist"),
        (replace(lonely(Option()), tensors=(Tensor(0, (4,)),)), "tensor 0 joins"),
        (replace(lonely(Option()), pools=(Pool("gpu", -1),)), "pool 'gpu'"),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=words):
            changed.check()
    differs = (Option(resent=()), Option(resent=((0, 1.0),)))
    with pytest.raises(PlanError, match="siblings"):
        Workload(
            (Layer("a", differs), Layer("b", (Option(),))), (Tensor(0, (1,)),), workload.pools
        ).check()
    with pytest.raises(PlanError, match=r"not a workload: layers.0.options"):
        from_json('{"layers": [{"name": "a"}], "pools": []}')
    assert "layer 0" in to_text(random_workload(5))


def test_replicas_can_be_needed_for_memory() -> None:
    """With two stages behind it the first would hold three microbatches; two replicas hold two each."""
    layers = tuple(
        Layer(name, (Option(forward_s=1.0, rest_nbytes=4.0, kept_nbytes=1.0),)) for name in "abc"
    )
    tensors = (Tensor(0, (1,)), Tensor(1, (2,)))
    workload = Workload(layers, tensors, (Pool("gpu", 4, 6.0),), 4).check()
    assert [stage.replicas for stage in least_load(workload).stages] == [2, 1, 1]
    with pytest.raises(InfeasibleError, match="fewer microbatches in flight"):
        least_load(replace(workload, pools=(Pool("gpu", 3, 6.0),)))
