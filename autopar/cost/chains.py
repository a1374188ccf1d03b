"""Shortest paths ("chains") in a sparse directed graph, from every node to the requested targets.

Bellman-Ford relaxation for all sources at once, one column per target: the chains are short and
the nodes are many.  A column is computed when its target is first requested, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from autopar.solver.problem import Array

Edge = tuple[int, int, int]
"""(from, to, kind); edges of one kind cost the same seconds."""
WHOLE = 128
"""In graphs of at most this many nodes, all targets are computed at the first request."""
Nodes = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Layer:
    """Edges with distinct sources, so that they can be relaxed in one vector operation."""

    sources: Nodes
    targets: Nodes
    kinds: Nodes


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges between `count` nodes: layer i holds the i-th outgoing edge of every node."""

    count: int
    layers: tuple[Layer, ...]

    @classmethod
    def of(cls, count: int, edges: Sequence[Edge]) -> Edges:
        """Build the layers.  No two edges may have the same source and the same target."""
        layers: list[list[Edge]] = []
        for _, leaving in groupby(sorted(edges), key=itemgetter(0)):
            for depth, edge in enumerate(leaving):
                if depth == len(layers):
                    layers.append([])
                layers[depth].append(edge)
        return cls(
            count, tuple(Layer(*np.array(layer, dtype=np.intp).T.copy()) for layer in layers)
        )

    def kinds(self, sources: Nodes, targets: Nodes) -> Nodes:
        """Return the kind of each edge from `sources` to `targets`; the edges must exist."""
        names, kinds = self._named
        found: Nodes = kinds[np.searchsorted(names, sources * self.count + targets)]
        return found

    @cached_property
    def _named(self) -> tuple[Nodes, Nodes]:
        """A sorted key for each edge (source * count + target), and its kind."""
        nothing = np.empty(0, dtype=np.intp)
        names = [layer.sources * self.count + layer.targets for layer in self.layers]
        kinds = [layer.kinds for layer in self.layers]
        together = np.concatenate([nothing, *names])
        order = np.argsort(together)
        return together[order], np.concatenate([nothing, *kinds])[order]


class Chains:
    """Cheapest chains, given the seconds of each kind of edge."""

    def __init__(self, edges: Edges, seconds: Array) -> None:
        self._edges = edges
        self._layers = [(each, seconds[each.kinds, None]) for each in edges.layers]
        self._column: dict[int, int] = {}
        self._seconds = np.empty((edges.count, 0))
        self._following = np.empty((edges.count, 0), dtype=np.intp)

    def seconds(self, sources: Sequence[int], targets: Sequence[int]) -> Array:
        """Return the seconds of the cheapest chains (sources x targets); infinite if there is none."""
        columns = self._columns(targets)
        return self._seconds[np.ix_(sources, columns)]

    def path(self, source: int, target: int) -> list[int]:
        """Return the nodes of the cheapest chain, both ends included; a chain must exist."""
        (column,) = self._columns([target])
        stops = [source]
        while stops[-1] != target:
            stops.append(int(self._following[stops[-1], column]))
        return stops

    def along(
        self, of_kind: Callable[[int], float], sources: Sequence[int], targets: Sequence[int]
    ) -> Array:
        """Return `of_kind` summed over each cheapest chain (sources x targets); 0 if there is none."""
        at = np.ix_(sources, self._columns(targets))
        columns = np.broadcast_to(at[1], (len(sources), len(targets)))
        end = np.broadcast_to(np.array(targets, dtype=np.intp), columns.shape)
        here = np.where(np.isfinite(self._seconds[at]), np.array(sources)[:, None], end)
        known: dict[int, float] = {}
        total = np.zeros(columns.shape)
        while (going := here != end).any():
            there = self._following[here, columns]
            kinds, which = np.unique(
                self._edges.kinds(here[going], there[going]), return_inverse=True
            )
            for kind in kinds.tolist():
                if kind not in known:
                    known[kind] = of_kind(kind)
            total[going] += np.array([known[kind] for kind in kinds.tolist()])[which]
            here = np.where(going, there, here)
        return total

    def _columns(self, targets: Sequence[int]) -> list[int]:
        new = [target for target in dict.fromkeys(targets) if target not in self._column]
        if new:
            if len(self._seconds) <= WHOLE:
                new = list(range(len(self._seconds)))
            seconds, following = _closed(len(self._seconds), new, self._layers)
            self._column |= {target: len(self._column) + i for i, target in enumerate(new)}
            self._seconds = np.hstack((self._seconds, seconds))
            self._following = np.hstack((self._following, following))
        return [self._column[target] for target in targets]


def _closed(
    count: int, targets: list[int], layers: list[tuple[Layer, Array]]
) -> tuple[Array, Nodes]:
    """Return the seconds from every node to each target, and the next node on the way."""
    seconds = np.full((count, len(targets)), np.inf)
    seconds[targets, np.arange(len(targets))] = 0.0
    following = np.zeros((count, len(targets)), dtype=np.intp)
    changed = np.zeros(count, dtype=bool)
    changed[targets] = True
    while changed.any():
        now = np.zeros(count, dtype=bool)
        for layer, cost in layers:
            live = changed[layer.targets] | now[layer.targets]
            rows, via = layer.sources[live], layer.targets[live]
            through = seconds[via] + cost[live]
            better = through < seconds[rows]
            hit = better.any(axis=1)
            rows, via, better = rows[hit], via[hit, None], better[hit]
            seconds[rows] = np.where(better, through[hit], seconds[rows])
            following[rows] = np.where(better, via, following[rows])
            now[rows] = True
        changed = now
    return seconds, following
