"""Baseline of equal stages, as set up by hand: one degree, option and replication for all stages.

Each stage has the same number of repeated layers.  The layers before them join the first stage and the
layers after them the last, or both get stages of their own (PipeDream-2BW's planner, the baseline in
Piper's evaluation).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from autopar.pipeline.planner.evaluate import Split, max_load
from autopar.pipeline.planner.workload import Workload, topological_order


def least_equal_load(workload: Workload, repeated: Sequence[int]) -> float:
    """Return the least maximal load of equal stages; infinite if none fits."""
    names = [layer.name for layer in workload.layers]
    order = topological_order(len(names), workload.edges, names)
    chain = [layer for layer in order if layer in set(repeated)]
    behind = _reached(workload, chain)
    tail = [layer for layer in order if layer in behind]
    head = [layer for layer in order if layer not in behind and layer not in set(chain)]
    cuts = [*_cuts(chain, head, tail, False), *_cuts(chain, head, tail, True)]
    return min((_least(workload, stages) for stages in cuts), default=math.inf)


def _reached(workload: Workload, chain: Sequence[int]) -> set[int]:
    found = set(chain)
    grown = True
    while grown:
        further = {target for source, target in workload.edges if source in found} - found
        found |= further
        grown = bool(further)
    return found - set(chain)


def _cuts(
    chain: list[int], head: list[int], tail: list[int], apart: bool
) -> Iterator[list[list[int]]]:
    for stages in range(1, len(chain) + 1):
        each, larger = divmod(len(chain), stages)
        sizes = [each] * (stages - larger) + [each + 1] * larger
        ends = [sum(sizes[: index + 1]) for index in range(stages)]
        parts = [chain[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        if apart:
            yield [head, *parts, tail]
        else:
            parts[0] = head + parts[0]
            parts[-1] = parts[-1] + tail
            yield parts


def _least(workload: Workload, stages: list[list[int]]) -> float:
    pool = workload.pools[0]
    kinds = {(o.devices, o.name) for layer in workload.layers for o in layer.options if o.pool == 0}
    best = math.inf
    for devices, name in sorted(kinds):
        most = pool.count // (devices * len(stages))
        for replicas in range(1, most + 1 if pool.replicas else min(most, 1) + 1):
            if workload.microbatches is None or workload.microbatches % replicas == 0:
                splits = _splits(workload, stages, devices, name, replicas)
                if splits is not None:
                    best = min(best, max_load(workload, splits))
    return best


def _splits(
    workload: Workload, stages: list[list[int]], devices: int, name: str, replicas: int
) -> list[Split] | None:
    """Return the stages with this option, or None if some layer does not offer it."""
    made = []
    for layers in stages:
        options = []
        for layer in layers:
            same = [
                option
                for option in workload.layers[layer].options
                if (option.pool, option.devices, option.name) == (0, devices, name)
            ]
            if not same:
                return None
            options.append((layer, same[0]))
        made.append(Split(tuple(options), replicas))
    return made
