"""Layer graphs with parallel branches, in the format of dnn-partitioning, as large as a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Branch = Sequence["int | Sequence[Branch]"]
"""Lengths of chains, or branches side by side, one after the other."""

INCEPTION: Branch = (
    18,
    *[[[3], [6], [9], [4]]] * 3,
    [[3], [9], [1]],
    *[[[3], [9], [15], [4]]] * 4,
    [[6], [12], [1]],
    *[[[3], [3, [[3], [3]]], [6, [[3], [3]]], [4]]] * 2,
    3,
)
"""Convolution, batch norm and ReLU as layers, in the modules of Inception v3: 36,000 downsets."""
WIDE: Branch = (
    6,
    *[[[9], [9], [15], [9], [4]]] * 5,
    12,
    [[6], [3, [[9], [3]]], [9]],
    3,
)
"""Five branches side by side: 400,000 downsets."""
WIDER: Branch = (6, *[[[9], [9], [15], [9], [9], [9]]] * 3, 3)
"""Six branches side by side: 5 million downsets."""


def layer_graph(
    shape: Branch, seed: int = 0, training: bool = False, devices: int = 6, cpus: int = 1
) -> dict[str, Any]:
    """Return an input file: random times of layers and transfers, the ends of branches joined."""
    random = np.random.default_rng(seed)
    edges: list[tuple[int, int]] = []
    count = 0

    def chain(length: int, ends: list[int]) -> list[int]:
        nonlocal count
        for _ in range(length):
            edges.extend((end, count) for end in ends)
            ends = [count]
            count += 1
        return ends

    def grown(branch: Branch, ends: list[int]) -> list[int]:
        for part in branch:
            if isinstance(part, int):
                ends = chain(part, ends)
            else:
                ends = chain(1, [end for each in part for end in grown(each, ends)])
        return ends

    grown(shape, [])
    fast = np.where(np.arange(count) % 3 == 0, random.uniform(0.5, 3.0, count), 0.05)
    costs = random.uniform(0.01, 0.4, count)
    sizes = np.floor(random.uniform(1, 9, count)) * 2.0**20

    def node(number: int, back: bool) -> dict[str, Any]:
        return {
            "id": number + count * back, "name": f"layer{number}{'grad' * back}",
            "fpgaLatency": float(fast[number]) * (1 + back), "supportedOnFpga": 1,
            "cpuLatency": 10 * float(fast[number]) * (1 + back), "isBackwardNode": back,
            "colorClass": number, "size": float(sizes[number]),
        }  # fmt: skip

    def edge(source: int, target: int, cost: float) -> dict[str, Any]:
        return {"sourceId": source, "destId": target, "cost": float(cost)}

    made = {
        "maxSizePerFPGA": 16 * 2.0**30, "maxFPGAs": devices, "maxCPUs": cpus,
        "nodes": [node(number, False) for number in range(count)],
        "edges": [edge(one, two, costs[one]) for one, two in edges],
    }  # fmt: skip
    if training:
        made["nodes"] += [node(number, True) for number in range(count)]
        made["edges"] += [edge(count + two, count + one, costs[two]) for one, two in edges]
        made["edges"] += [edge(number, count + number, costs[number]) for number in range(count)]
    return made
