"""Load and memory of a given stage, computed directly from the definitions.

Results of the throughput solver are checked against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autopar.pipeline.planner.workload import Option, Workload


@dataclass(frozen=True)
class Split:
    """An explicit stage: pairs of a layer and its option, and the number of replicas."""

    options: tuple[tuple[int, Option], ...]
    replicas: int = 1


def load_of(workload: Workload, split: Split) -> float:
    """Return the seconds per microbatch of a stage."""
    pool = workload.pools[split.options[0][1].pool]
    inside = {layer for layer, _ in split.options}
    seconds = sum(option.seconds for _, option in split.options)
    reduced = sum(option.reduced_nbytes for _, option in split.options)
    if pool.pays_transfers:
        seconds += sum(_border_seconds(workload, split, inside))
    load = seconds / split.replicas
    if split.replicas > 1 and workload.microbatches is not None:
        sent = workload.reduce_rounds * (split.replicas - 1) / split.replicas * reduced
        load += sent / pool.bytes_per_s / workload.microbatches
    return load


def _border_seconds(workload: Workload, split: Split, inside: set[int]) -> Iterable[float]:
    pool = workload.pools[split.options[0][1].pool]
    for index, tensor in enumerate(workload.tensors):
        touching = {tensor.source, *tensor.targets}
        if touching & inside and touching - inside:
            own = tensor.seconds
            once = tensor.nbytes / pool.bytes_per_s + pool.latency_s if own is None else own
            resent = sum(n for _, o in split.options for t, n in o.resent if t == index)
            yield tensor.round_trips * (once + resent / pool.bytes_per_s)


def nbytes_of(split: Split, in_flight: float) -> float:
    """Return the bytes per device of a stage with `in_flight` microbatches in flight."""
    options = [option for _, option in split.options]
    return (
        sum(option.rest_nbytes for option in options)
        + in_flight * sum(option.kept_nbytes for option in options)
        + max(option.working_nbytes for option in options)
    )


def max_load(workload: Workload, splits: Sequence[Split]) -> float:
    """Return the largest load of a plan's stages, given first to last.

    It is infinite if memory, devices or microbatches do not suffice.
    """
    taken = [0] * len(workload.pools)
    behind = 0
    worst = 0.0
    for split in reversed(splits):
        way = split.options[0][1].way
        pool = workload.pools[way[0]]
        taken[way[0]] += way[1] * split.replicas
        behind += split.replicas
        if nbytes_of(split, -(-behind // split.replicas)) > pool.memory_nbytes:
            return math.inf
        worst = max(worst, load_of(workload, split))
    enough = all(n <= pool.count for n, pool in zip(taken, workload.pools, strict=True))
    steps = workload.microbatches
    return worst if enough and (steps is None or behind <= steps) else math.inf
