"""Layer graphs of other planners, and the values that their own programs reach on them.

The graphs are in `benchmarks/layer_graph_inputs/`.  The values come from the authors' programs,
msr-fiddle/dnn-partitioning (`throughput-dp/dp.cpp`, `dp`) and msr-fiddle/piper (`algo.cpp`), both under
the MIT licence, compiled and run on one core: milliseconds a sample, and seconds a sample at
25 * 2**30 bytes/s.
"""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from autopar.errors import InfeasibleError
from autopar.pipeline.planner.evaluate import Split, max_load
from autopar.pipeline.planner.read_dnn_partitioning import read_dnn_partitioning
from autopar.pipeline.planner.read_piper import read_piper
from autopar.pipeline.planner.throughput import ThroughputPlan, least_load
from autopar.pipeline.planner.workload import Workload
from tests.pipeline.planner.equal import least_equal_load

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
AUTHORS = json.loads((BENCHMARKS / "layer_graphs_reference.json").read_text())["dnn_partitioning"]
NONE = math.inf
# GiB, devices: Piper's own, without replicas, tensor parallelism, recompute; equal stages without
# and with tensor parallelism.
PIPER: dict[tuple[float, int], tuple[float, ...]] = {
    (1, 8): (NONE,) * 6,
    (1, 32): (NONE,) * 6,
    (1, 64): (NONE,) * 6,
    (1, 128): (0.03887175, 0.07390625, NONE, NONE, NONE, NONE),
    (1, 512): (0.00878004036, 0.07390625, NONE, NONE, NONE, NONE),
    (2, 8): (NONE,) * 6,
    (2, 32): (0.0665495, 0.07390625, NONE, NONE, NONE, NONE),
    (2, 64): (0.0320300812, 0.07390625, 0.0443059868, 0.1567745, NONE, 0.12333875),
    (2, 128): (0.0151464079, 0.07390625, 0.0151464079, 0.0713791657, NONE, 0.0482573118),
    (2, 512): (0.00366752626, 0.07390625, 0.00366752626, 0.015044385, NONE, 0.0120755538),
    (8, 8): (0.16585575, 0.16585575, 0.16585575, 0.2597525, 0.230978, 0.230978),
    (8, 32): (0.0415154504, 0.07390625, 0.0415154504, 0.0566194733, 0.0513510889, 0.0513510889),
    (8, 64): (0.0202005503, 0.07390625, 0.0202005503, 0.0279882783, 0.0257245478, 0.0257245478),
    (8, 128): (0.0101208803, 0.07390625, 0.0101208803, 0.0135946002, 0.0129112773, 0.0129112773),
    (8, 512): (
        0.00256112785, 0.07390625, 0.00256112785, 0.00341807489, 0.00330132436, 0.00330132436,
    ),
    (80, 8): (0.122007269, 0.16451575, 0.122007269, 0.122007269, 0.122007269, 0.122007269),
    (80, 32): (0.0308440482, 0.07390625, 0.0308440482, 0.0308440482, 0.0308440482, 0.0308440482),
    (80, 64): (0.015650178, 0.07390625, 0.015650178, 0.015650178, 0.015650178, 0.015650178),
    (80, 128): (
        0.00805324292, 0.07390625, 0.00805324292, 0.00805324292, 0.00805324292, 0.00805324292,
    ),
    (80, 512): (
        0.00227252011, 0.07390625, 0.00227252011, 0.00227252011, 0.00241478679, 0.00241478679,
    ),
}  # fmt: skip
EVERY_DAY = {(1, 8), (2, 32), (2, 64), (8, 8)}


def read(name: str) -> str:
    return gzip.decompress(
        (BENCHMARKS / "layer_graph_inputs" / f"{name}.json.gz").read_bytes()
    ).decode()


@pytest.mark.parametrize("name", AUTHORS)
def test_max_load(name: str) -> None:
    workload = read_dnn_partitioning(read(f"dnn_partitioning/{name}"))
    plan = least_load(workload)
    assert plan.load_s * 1e3 == pytest.approx(AUTHORS[name]["load_ms"], rel=1e-5)
    assert plan.bound_s == plan.load_s == max_load(workload, splits(workload, plan))


def splits(workload: Workload, plan: ThroughputPlan) -> list[Split]:
    """The plan's stages; each layer has one option on a pool."""
    assert sorted(at for stage in plan.stages for at in stage.layers) == list(
        range(len(workload.layers))
    )
    return [
        Split(
            tuple(
                next((at, o) for o in workload.layers[at].options if o.pool == stage.pool)
                for at in stage.layers
            ),
            stage.replicas,
        )
        for stage in plan.stages
    ]


@pytest.mark.parametrize(
    "memory, devices",
    [
        pytest.param(
            *row, marks=() if row in EVERY_DAY else pytest.mark.slow, id=f"{row[0]}GiB-{row[1]}"
        )
        for row in PIPER
    ],
)
def test_piper(memory: float, devices: int) -> None:
    whole = read_piper(read("piper/bert32a100"), devices, memory * 2**30, 25 * 2**30)
    alone = replace(whole, pools=(replace(whole.pools[0], replicas=False),))
    split = whole.keeping(most_devices=1)
    blocks = [at for at, layer in enumerate(whole.layers) if "Transformer" in layer.name]
    got = (
        solved(whole), solved(alone), solved(split), solved(whole.keeping(names=["vanilla"])),
        least_equal_load(split, blocks), least_equal_load(whole, blocks),
    )  # fmt: skip
    assert got == pytest.approx(PIPER[memory, devices], rel=1e-8)


def solved(workload: Workload) -> float:
    try:
        return least_load(workload).load_s
    except InfeasibleError:
        return math.inf
