"""Reads Piper's input files (github.com/msr-fiddle/piper, NeurIPS 2021).

In these files, the bytes of an edge are transferred forward and backward, and a layer can add bytes of
its own at a border.  Each of d replicas transfers 4 (d - 1) / d of its weights.  Memory is
`memoryUsageA` per microbatch in flight plus `memoryUsageB`.
"""

from __future__ import annotations

import json
from typing import Any

from autopar.errors import PlanError
from autopar.pipeline.planner.workload import Layer, Option, Pool, Tensor, Workload

REDUCE_ROUNDS = 4.0
"""As with a parameter server; Piper and PipeDream count so."""


def read_piper(
    text: str,
    devices: int | None = None,
    memory_nbytes: float | None = None,
    bytes_per_s: float | None = None,
) -> Workload:
    """Return the workload of a file; arguments that are not None replace the file's own limits."""
    try:
        return _workload(json.loads(text), devices, memory_nbytes, bytes_per_s).check()
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise PlanError(f"this is not an input of Piper: {type(error).__name__} {error}") from error


def _workload(
    read: dict[str, Any], devices: int | None, memory: float | None, speed: float | None
) -> Workload:
    number = {node["id"]: index for index, node in enumerate(read["nodes"])}
    tensors = tuple(
        Tensor(number[e["sourceId"]], (number[e["destId"]],), e["communicationCost"], 2)
        for e in read["edges"]
    )
    edge = {(t.source, t.targets[0]): index for index, t in enumerate(tensors)}
    layers = []
    for at, node in enumerate(read["nodes"]):
        options = tuple(
            Option(
                name=way["id"],
                devices=int(degree),
                forward_s=way["timePerSample"],
                rest_nbytes=way["memoryUsageB"],
                kept_nbytes=way["memoryUsageA"],
                reduced_nbytes=way["parameterSize"],
                resent=tuple(
                    sorted(
                        [(edge[number[int(u)], at], b) for u, b in way["syncTimeFw"].items()]
                        + [(edge[at, number[int(w)]], b) for w, b in way["syncTimeBw"].items()]
                    )
                ),
            )
            for degree, ways in node["TMPCs"].items()
            for way in ways
        )
        layers.append(Layer(f"{node.get('name', 'layer')} {node['id']}", options))
    pool = Pool(
        "accelerator",
        devices or read["maxDevices"],
        memory or read["maxMemoryPerDevice"],
        speed or read["bandwidth"],
    )
    return Workload(tuple(layers), tensors, (pool,), read["mbsInBatch"], REDUCE_ROUNDS)
