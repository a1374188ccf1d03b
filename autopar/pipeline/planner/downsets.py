"""The possible cuts of a graph: groups of layers that share a stage, and their downsets.

A stage is the difference of two nested downsets (sets that contain all predecessors of their members).
Thus every tensor between stages goes forward.  The downsets of a chain are its prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.lattice.downsets import Lattice
from autopar.pipeline.planner.workload import Workload


@dataclass(frozen=True)
class Groups:
    """Layers that share a stage.  No group of `before[g]` may be on a later stage than group g."""

    members: tuple[tuple[int, ...], ...]
    before: tuple[frozenset[int], ...]

    def along(self, sequence: Sequence[int]) -> Groups:
        """Return the groups in another topological order."""
        number = {group: at for at, group in enumerate(sequence)}
        return Groups(
            tuple(self.members[group] for group in sequence),
            tuple(frozenset(number[other] for other in self.before[group]) for group in sequence),
        )


def groups_of(workload: Workload) -> Groups:
    """Return the groups: colocated layers form one, and groups in a dependency cycle are merged.

    Only edges between forward layers order groups: a backward layer runs on the stage of its forward
    layer, in the opposite order.  A group with only backward layers is ordered by the reversed edges
    of these layers.
    """
    # networkx is slow to import, which would delay every command.
    import networkx as nx

    names = [layer.group or f"\0{index}" for index, layer in enumerate(workload.layers)]
    has_forward = {
        name for name, layer in zip(names, workload.layers, strict=True) if not layer.backward
    }
    order: nx.DiGraph[str] = nx.DiGraph()
    order.add_nodes_from(names)
    for source, target in workload.edges:
        one, two = names[source], names[target]
        if not workload.layers[source].backward and not workload.layers[target].backward:
            order.add_edge(one, two)
        elif workload.layers[source].backward and not {one, two} <= has_forward:
            order.add_edge(two, one)
    order.remove_edges_from(list(nx.selfloop_edges(order)))
    fused = nx.condensation(order)
    sequence = list(nx.lexicographical_topological_sort(fused))
    number = {node: index for index, node in enumerate(sequence)}
    at = {name: number[node] for name, node in fused.graph["mapping"].items()}
    members: list[list[int]] = [[] for _ in sequence]
    for index, name in enumerate(names):
        members[at[name]].append(index)
    return Groups(
        tuple(tuple(layers) for layers in members),
        tuple(frozenset(number[p] for p in fused.predecessors(node)) for node in sequence),
    )


@dataclass(frozen=True, eq=False)
class Downsets:
    """Downsets by number of groups, from the empty one to the full one.

    `holds[d, l]` is whether downset d contains layer l; `inside[d]` are the groups of downset d.
    """

    holds: NDArray[np.bool_]
    groups: Groups
    inside: tuple[frozenset[int], ...]

    def __len__(self) -> int:
        return len(self.inside)

    def above(self, start: int) -> NDArray[np.intp]:
        """Return the downsets that strictly contain `start`."""
        inner = self.holds[start]
        bigger = (self.holds[:, inner].all(axis=1)) & (self.holds.sum(axis=1) > inner.sum())
        return np.flatnonzero(bigger)


def downsets_of(groups: Groups, lattice: Lattice) -> Downsets:
    """Return the downsets of a lattice of these groups."""
    member = np.zeros((len(groups.members), sum(map(len, groups.members))), dtype=bool)
    for group, layers in enumerate(groups.members):
        member[group, list(layers)] = True
    inside: list[frozenset[int]] = []
    rows = []
    for _, holds in lattice.holds():
        inside += [frozenset(np.flatnonzero(row).tolist()) for row in holds]
        rows.append(holds.astype(np.float32) @ member > 0)
    return Downsets(np.concatenate(rows), groups, tuple(inside))
