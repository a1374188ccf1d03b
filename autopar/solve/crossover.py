"""Mixtures of assignments: what differs between two of them is exchanged piece by piece.

Variables in which the two differ, and which share a table, belong together; each connected piece can
be taken from either assignment, and changes the sums by amounts that do not depend on the others.  Two
neighbours on a convex hull may be all of one kind and all of the other (every layer in this form, or
in that); the best that lies between them is a mixture.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from autopar.problem import Array
from autopar.solve.network import Network, Table
from autopar.solve.rows import Goal

ROUNDS = 3
"""A piece that did not fit may fit once others are exchanged."""
States = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Piece:
    """Variables that are exchanged together, and what that adds to the sums."""

    variables: tuple[int, ...]
    change: Array


def improved(
    network: Network, first: States, ends: Sequence[States], goal: Goal, prices: Array
) -> tuple[States, Array]:
    """The first assignment with every piece of the ends that brings it nearer to the goal, greedily.

    Nearer is: less over the limits, then less cost.  Pieces that save most at `prices` come first.
    """
    states, sums = first, network.sums(first)
    for _ in range(ROUNDS):
        before = states
        for end in ends:
            states, sums = _exchanged(network, (states, sums), end, goal, prices)
        if states == before:
            break
    return states, sums


def _exchanged(
    network: Network, start: tuple[States, Array], end: States, goal: Goal, prices: Array
) -> tuple[States, Array]:
    first, sums = start
    states, here = list(first), (goal.over(sums), goal.soft(sums))
    found = pieces(network, first, end)
    for piece in sorted(found, key=lambda piece: float(np.dot(prices, piece.change))):
        changed = sums + piece.change
        there = (goal.over(changed), goal.soft(changed))
        if there < here:
            sums, here = changed, there
            for index in piece.variables:
                states[index] = end[index]
    return tuple(states), sums


def pieces(network: Network, first: States, second: States) -> list[Piece]:
    """The connected pieces of the difference, in the order of their first variables."""
    differing = {i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b}
    joined = nx.Graph()
    joined.add_nodes_from(differing)
    touching: defaultdict[int, list[Table]] = defaultdict(list)
    for table in network.tables:
        inside = [index for index in table.scope if index in differing]
        nx.add_path(joined, inside)
        if inside:
            touching[inside[0]].append(table)
    parts = sorted(tuple(sorted(part)) for part in nx.connected_components(joined))
    return [_piece(part, (t for i in part for t in touching[i]), first, second) for part in parts]


def _piece(part: tuple[int, ...], tables: Iterable[Table], first: States, second: States) -> Piece:
    change, exchanged = np.zeros(4), set(part)
    for table in tables:
        before = tuple(first[index] for index in table.scope)
        after = tuple((second if index in exchanged else first)[index] for index in table.scope)
        change += [array[after] - array[before] for array in table.arrays]
    return Piece(part, change)
