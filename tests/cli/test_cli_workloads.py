"""`autopar solve` of what a pipeline's layers cost, in each of the formats that it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autopar.pipeline.planner.throughput import least_load
from autopar.pipeline.planner.workload import Layer, Option, Pool, Tensor, Workload
from autopar.pipeline.planner.workload_text import to_json
from tests.cli.commands import fails, ok

CHAIN = Workload(
    tuple(Layer(f"layer {at}", (Option("", forward_s=1.0 + at),)) for at in range(4)),
    tuple(Tensor(at, (at + 1,), 8.0) for at in range(3)),
    (Pool("accelerator", 2, 1e9, 1e9, replicas=False),),
)
NODE = {"cpuLatency": 9e3, "fpgaLatency": 1e3, "supportedOnFpga": True, "isBackwardNode": False}
PARTITIONING = {
    "maxFPGAs": 2, "maxSizePerFPGA": 1e9, "maxCPUs": 0,
    "nodes": [NODE | {"id": at, "size": 1.0} for at in range(4)],
    "edges": [{"sourceId": at, "destId": at + 1, "cost": 0.0} for at in range(3)],
}  # fmt: skip
WAY = {
    "id": "vanilla", "timePerSample": 1.0, "memoryUsageA": 0.0, "memoryUsageB": 1.0,
    "parameterSize": 0.0, "syncTimeFw": {}, "syncTimeBw": {},
}  # fmt: skip
PIPER = {
    "maxDevices": 2, "maxMemoryPerDevice": 1e9, "bandwidth": 1e9, "mbsInBatch": 4,
    "nodes": [{"id": at, "TMPCs": {"1": [WAY]}} for at in range(4)],
    "edges": [{"sourceId": at, "destId": at + 1, "communicationCost": 0.0} for at in range(3)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "load_s", "stages"),
    [(to_json(CHAIN), 6.0, 2), (json.dumps(PARTITIONING), 2.0, 2), (json.dumps(PIPER), 2.0, None)],
    ids=["autopar", "dnn-partitioning", "piper"],
)
def test_stages(text: str, load_s: float, stages: int | None, tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    file.write_text(text)
    found = json.loads(ok("solve", file, "--json"))
    assert found["load_s"] == pytest.approx(load_s)
    assert stages is None or len(found["stages"]) == stages
    shown = " ".join(ok("solve", file).split())
    assert f"{load_s} s per microbatch, the least of" in shown and "accelerator" in shown


def test_it_is_the_librarys_answer(tmp_path: Path) -> None:
    (tmp_path / "layers.json").write_text(to_json(CHAIN))
    found = json.loads(ok("solve", tmp_path / "layers.json", "--json"))
    assert [stage["layers"] for stage in found["stages"]] == [[0, 1, 2], [3]]
    assert found["load_s"] == least_load(CHAIN).load_s


@pytest.mark.parametrize(
    ("content", "flags", "said"),
    [
        ({"layers": 3}, (), "layers.json: this is not a workload: layers"),
        ({"nodes": [{"TMPCs": {}}]}, (), "layers.json: this is not an input of Piper: maxDevices: Field required"),
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
