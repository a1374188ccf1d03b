"""Reads input files of dnn-partitioning (github.com/msr-fiddle/dnn-partitioning, NeurIPS 2020).

A layer runs on one accelerator or one CPU.  A tensor that crosses an accelerator's border costs its
`cost` there once, however many layers read it.  Transfers of CPUs are free.  Layers of one
`colorClass` share a device, which ties a backward layer to its forward layer.  Times are milliseconds
in the files and seconds in the workload.
"""

from __future__ import annotations

import json
from typing import Any

from autopar.errors import PlanError
from autopar.pipeline.planner.workload import Layer, Option, Pool, Tensor, Workload

ACCELERATOR, CPU = 0, 1


def read_dnn_partitioning(text: str) -> Workload:
    """Return the workload of a file: pool 0 has the accelerators, pool 1 the CPUs."""
    try:
        return _workload(json.loads(text)).check()
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise PlanError(
            f"this is not an input of dnn-partitioning: {type(error).__name__} {error}"
        ) from error


def _workload(read: dict[str, Any]) -> Workload:
    number = {node["id"]: index for index, node in enumerate(read["nodes"])}
    layers = tuple(
        Layer(
            f"{node.get('name', 'node')} {node['id']}",
            _options(node),
            None if "colorClass" not in node else str(node["colorClass"]),
            bool(node["isBackwardNode"]),
        )
        for node in read["nodes"]
    )
    readers: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for edge in read["edges"]:
        source, cost = number[edge["sourceId"]], edge["cost"] / 1e3
        if abs(seconds.setdefault(source, cost) - cost) > 1e-9:
            raise PlanError(
                f"layer {layers[source].name!r} has outgoing edges of different costs, "
                f"{seconds[source]} s and {cost} s; a tensor is sent once, at one cost"
            )
        readers.setdefault(source, []).append(number[edge["destId"]])
    tensors = tuple(
        Tensor(source, tuple(targets), seconds=seconds[source])
        for source, targets in readers.items()
    )
    pools = (
        Pool("accelerator", read["maxFPGAs"], read["maxSizePerFPGA"], replicas=False),
        Pool("cpu", read["maxCPUs"], pays_transfers=False, replicas=False),
    )
    return Workload(layers, tensors, pools)


def _options(node: dict[str, Any]) -> tuple[Option, ...]:
    back = bool(node["isBackwardNode"])
    on_cpu = node["cpuLatency"] / 1e3
    cpu = Option(pool=CPU, forward_s=0.0 if back else on_cpu, input_grad_s=on_cpu if back else 0.0)
    if not node["supportedOnFpga"]:
        return (cpu,)
    fast = node["fpgaLatency"] / 1e3
    accelerator = Option(
        forward_s=0.0 if back else fast,
        input_grad_s=fast if back else 0.0,
        rest_nbytes=node.get("size", 0.0),
    )
    return (accelerator, cpu)
