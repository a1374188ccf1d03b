"""Every split of a small workload into stages, straight from the definitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from autopar.pipeline.planner.evaluate import Split, load_of, nbytes_of
from autopar.pipeline.planner.workload import Workload


def least_load_by_hand(workload: Workload) -> float:
    """The least maximal load of layers that keep nothing in flight; infinite if nothing fits."""
    most = min(sum(pool.count for pool in workload.pools), len(workload.layers))
    known: dict[frozenset[int], list[tuple[tuple[int, ...], float]]] = {}
    best = math.inf
    for stages in assignments(workload, most):
        for layers in stages:
            if layers not in known:
                known[layers] = list(_ways(workload, layers))
        for ways in itertools.product(*(known[layers] for layers in stages)):
            taken = [sum(of) for of in zip(*(taken for taken, _ in ways), strict=True)]
            if all(n <= pool.count for n, pool in zip(taken, workload.pools, strict=True)):
                best = min(best, max(load for _, load in ways))
    return best


def assignments(workload: Workload, most: int) -> Iterator[list[frozenset[int]]]:
    """Layers to at most so many stages: groups together, forward edges onward.

    A backward layer that has no forward layer in its group follows the reversed gradients.
    """
    names = [layer.group or f"alone {at}" for at, layer in enumerate(workload.layers)]
    groups = sorted(set(names))
    forward = {n for n, l in zip(names, workload.layers, strict=True) if not l.backward}
    onward = []
    for source, target in workload.edges:
        one, two = names[source], names[target]
        if not workload.layers[source].backward and not workload.layers[target].backward:
            onward.append((one, two))
        elif workload.layers[source].backward and not {one, two} <= forward:
            onward.append((two, one))
    for places in itertools.product(range(most), repeat=len(groups)):
        at = dict(zip(groups, places, strict=True))
        used = set(places)
        if used == set(range(len(used))) and all(at[one] <= at[two] for one, two in onward):
            yield [
                frozenset(l for l, name in enumerate(names) if at[name] == stage)
                for stage in range(len(used))
            ]


def _ways(workload: Workload, layers: frozenset[int]) -> Iterator[tuple[tuple[int, ...], float]]:
    """The devices of each pool that a stage takes, and its load, for each way that fits."""
    for way in sorted({option.way for layer in workload.layers for option in layer.options}):
        choices = [
            [(layer, option) for option in workload.layers[layer].options if option.way == way]
            for layer in sorted(layers)
        ]
        for replicas in workload.replicas_of(way):
            for options in itertools.product(*choices):
                split = Split(options, replicas)
                if nbytes_of(split, 1) <= workload.pools[way[0]].memory_nbytes:
                    taken = [0] * len(workload.pools)
                    taken[way[0]] = way[1] * replicas
                    yield tuple(taken), load_of(workload, split)
