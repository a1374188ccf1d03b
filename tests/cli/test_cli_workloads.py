"""`autopar stages` and `autopar solve` of what a pipeline's layers cost, in each of their formats."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from autopar.pipeline.planner.throughput import least_load
from autopar.pipeline.planner.workload import Layer, Option, Pool, Tensor, Workload
from autopar.pipeline.planner.workload_text import to_json
from tests.cli.commands import fails, ok, run

CHAIN = Workload(
    tuple(Layer(f"layer {at}", (Option("", forward_s=1.0 + at),)) for at in range(4)),
    tuple(Tensor(at, (at + 1,), 8.0) for at in range(3)),
    (Pool("accelerator", 2, 1e9, 1e9, replicas=False),),
)
NODE = {"cpuLatency": 9e3, "fpgaLatency": 1e3, "supportedOnFpga": True, "isBackwardNode": False}
PARTITIONING: dict[str, Any] = {
    "maxFPGAs": 2, "maxSizePerFPGA": 1e9, "maxCPUs": 0,
    "nodes": [NODE | {"id": at, "size": 1.0} for at in range(4)],
    "edges": [{"sourceId": at, "destId": at + 1, "cost": 0.0} for at in range(3)],
}  # fmt: skip
WAY = {
    "id": "vanilla", "timePerSample": 1.0, "memoryUsageA": 0.0, "memoryUsageB": 1.0,
    "parameterSize": 0.0, "syncTimeFw": {}, "syncTimeBw": {},
}  # fmt: skip
PIPER: dict[str, Any] = {
    "maxDevices": 2, "maxMemoryPerDevice": 1e9, "bandwidth": 1e9, "mbsInBatch": 4,
    "nodes": [{"id": at, "TMPCs": {"1": [WAY]}} for at in range(4)],
    "edges": [{"sourceId": at, "destId": at + 1, "communicationCost": 0.0} for at in range(3)],
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "load_s", "stages"),
    [(to_json(CHAIN), 6.0, 2), (json.dumps(PARTITIONING), 2.0, 2), (json.dumps(PIPER), 2.0, None)],
    ids=["autopar", "dnn-partitioning", "piper"],
)
@pytest.mark.parametrize("command", ["stages", "solve"])
def test_stages(text: str, load_s: float, stages: int | None, command: str, tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    file.write_text(text)
    found = json.loads(ok(command, file, "--json"))
    assert found["load_s"] == found["bound_s"] == pytest.approx(load_s)
    assert stages is None or len(found["stages"]) == stages
    shown = " ".join(ok(command, file).split())
    assert f"{load_s} s per microbatch, the least of" in shown and "accelerator" in shown
    assert f"bound {load_s} s, optimal" in shown


@pytest.mark.parametrize("command", ["stages", "solve"])
def test_it_is_the_librarys_answer(command: str, tmp_path: Path) -> None:
    (tmp_path / "layers.json").write_text(to_json(CHAIN))
    found = json.loads(ok(command, tmp_path / "layers.json", "--json"))
    assert [stage["layers"] for stage in found["stages"]] == [[0, 1, 2], [3]]
    assert found["load_s"] == least_load(CHAIN).load_s


def test_the_plan_is_written(tmp_path: Path) -> None:
    file, plan = tmp_path / "layers.json.gz", tmp_path / "plan.json"
    file.write_bytes(gzip.compress(json.dumps(PARTITIONING).encode()))
    printed = json.loads(ok("stages", file, "--json", "-o", plan, "--seconds", 30))
    written = json.loads(plan.read_text())
    assert printed == written and written["throughput_per_s"] == 0.5 and written["gap"] == 0
    assert [stage["names"] for stage in written["stages"]] == [
        ["node 0", "node 1"],
        ["node 2", "node 3"],
    ]
    assert {stage["pool"] for stage in written["stages"]} == {"accelerator"}


def test_options_of_layers_are_shown(tmp_path: Path) -> None:
    """In 5.5 bytes the first layer must recompute: it keeps 1 + 3 or, more slowly, 2 in flight."""
    ways = [
        WAY | {"memoryUsageA": 2.0},
        WAY | {"id": "again", "timePerSample": 1.2, "memoryUsageA": 1.0},
    ]
    nodes = [{"id": at, "TMPCs": {"1": ways if at == 0 else [WAY]}} for at in range(2)]
    file = tmp_path / "layers.json"
    file.write_text(json.dumps(PIPER | {"nodes": nodes, "edges": PIPER["edges"][:1],
                                        "mbsInBatch": 3, "maxMemoryPerDevice": 3.5}))  # fmt: skip
    assert "again" in ok("stages", file) and "vanilla" in ok("stages", file)


@pytest.mark.thorough
def test_too_many_downsets_have_a_bound(tmp_path: Path) -> None:
    """Thirty layers side by side: a second is not enough for 2**30 downsets."""
    file = tmp_path / "layers.json"
    nodes = [NODE | {"id": at, "fpgaLatency": 1e3 + 7 * at} for at in range(30)]
    file.write_text(json.dumps(PARTITIONING | {"nodes": nodes, "edges": [], "maxFPGAs": 4}))
    found = json.loads(ok("stages", file, "--seconds", 1, "--json"))
    assert found["downsets"] is None and "too many downsets" in found["method"]
    assert 0.9 * found["load_s"] < found["bound_s"] < found["load_s"]
    assert "% of optimal" in ok("stages", file, "--seconds", 1)


def test_keys_that_are_not_read_are_said(tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    nodes = [node | {"layerId": 3, "remark": "x"} for node in PARTITIONING["nodes"]]
    file.write_text(json.dumps(PARTITIONING | {"nodes": nodes}))
    assert json.loads(ok("stages", file, "--json"))["unread"] == ["remark of nodes"]
    assert "not read remark of nodes" in " ".join(ok("stages", file).split())


def changed(index: int, kind: str = "nodes", **keys: Any) -> dict[str, Any]:
    """The input of dnn-partitioning with other keys of a node or edge; None takes a key away."""
    entries = [dict(entry) for entry in PARTITIONING[kind]]
    entries[index] |= keys
    entries[index] = {key: value for key, value in entries[index].items() if value is not None}
    return PARTITIONING | {kind: entries}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (changed(2, cpuLatency=None), "node 2, cpuLatency: Field required"),
        (changed(1, fpgaLatency="fast"), "node 1, fpgaLatency: Input should be a valid number"),
        (changed(1, fpgaLatency=-1), "node 1, fpgaLatency: Input should be greater than or equal to 0"),
        (changed(1, fpgaLatency=float("nan")), "node 1, fpgaLatency: Input should be a finite number"),
        (changed(1, isBackwardNode=2), "node 1, isBackwardNode: Input should be"),
        (changed(1, colourClass=2), "node 1: unknown key 'colourClass'. Did you mean 'colorClass'?"),
        (changed(1, id=0), "two nodes have the id 0"),
        (changed(0, isBackwardNode=True), "node 1 is a forward node and reads the backward node 0"),
        (changed(1, "edges", destId=9), "edge 1 from 1 to 9: no node has the id 9"),
        (changed(1, "edges", destId=1), "edge 1 joins node 1 to itself"),
        (changed(1, "edges", destId=0), "the graph has a cycle"),
        (changed(1, "edges", cost=None), "edge 1 from 1 to 2, cost: Field required"),
        (changed(1, "edges", sourceId=0, cost=2.0), "node 0 has outgoing edges of different costs"),
        (PARTITIONING | {"maxFPGAs": -1}, "maxFPGAs: Input should be greater than or equal to 0"),
        (PARTITIONING | {"nodes": [], "edges": []}, "a workload needs at least one layer"),
        (changed(3, supportedOnFpga=False), "no pool with devices runs 'node 3'"),
        (changed(3, size=2e9), "'node 3' needs 2e+09 bytes"),
        (PIPER | {"nodes": [{"id": 7, "TMPCs": {"1": [WAY | {"timePerSample": None}]}}]},
         "node 7, TMPCs, 1, 0, timePerSample"),
        (PIPER | {"nodes": [{"id": 7, "TMPCs": {"1": [WAY | {"syncTimeFw": {"3": 1}}]}}], "edges": []},
         "syncTimeFw of 'vanilla' of node 7 names an edge from 3 to 7"),
        ({"layers": 3}, "this is not a workload: layers"),
        ({"nodes": []}, "has no costs of layers"),
        ([], "has no costs of layers"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file(content: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "layers.json").write_text(json.dumps(content))
    shown = fails("stages", tmp_path / "layers.json")
    assert said in shown and "layers.json" in shown


def test_files_that_are_no_json_and_flags_that_are_no_time(tmp_path: Path) -> None:
    (tmp_path / "layers.json").write_text("{")
    assert "layers.json is not JSON" in fails("stages", tmp_path / "layers.json")
    assert "Cannot read the layers" in fails("stages", tmp_path / "none.json")
    for seconds in ("0", "-1", "nan"):
        assert run("stages", tmp_path / "layers.json", "--seconds", seconds).exit_code == 2


@pytest.mark.parametrize(
    ("content", "flags", "said"),
    [
        ({"layers": 3}, (), "layers.json: this is not a workload: layers"),
        (
            {"nodes": [{"TMPCs": {}}]},
            (),
            "layers.json: this is not an input of Piper: maxDevices: Field required",
        ),
        (
            {"nodes": [{"fpgaLatency": 1}]},
            (),
            "layers.json: this is not an input of dnn-partitioning",
        ),
        (PIPER, ("--memory", "1GiB"), "a file of a pipeline's layers has the memory of its pools"),
        (PIPER, ("--seconds", "1"), "a file of a pipeline's layers has the memory of its pools"),
        (PIPER, ("--solver", "ilp"), "a file of a pipeline's layers has the memory of its pools"),
        (PIPER | {"maxMemoryPerDevice": 1e-9}, (), "no range of layers fits into any pool"),
        ({"nodes": []}, (), "layers.json"),
    ],
)
def test_what_is_wrong(
    content: dict[str, Any], flags: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    (tmp_path / "layers.json").write_text(json.dumps(content))
    assert said in fails("solve", tmp_path / "layers.json", *flags)
