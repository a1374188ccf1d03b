"""Mixtures of two assignments: what differs between them is exchanged piece by piece.

Variables in which the two differ, and which share a table, belong together; each connected piece can
be taken from either assignment, and changes the sums by amounts that do not depend on the others.  Two
neighbours on a convex hull may be all of one kind and all of the other (every layer in this form, or
in that); the best that lies between them is a mixture.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx

from autopar.solve.network import Network, Table


@dataclass(frozen=True)
class Piece:
    """Variables that are exchanged together, and what that adds to the first assignment's sums."""

    variables: tuple[int, ...]
    ticks: float
    nbytes: float
    uncovered: float


def pieces(network: Network, first: tuple[int, ...], second: tuple[int, ...]) -> list[Piece]:
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
    return [_piece(part, [t for i in part for t in touching[i]], first, second) for part in parts]


def _piece(
    part: tuple[int, ...], tables: list[Table], first: tuple[int, ...], second: tuple[int, ...]
) -> Piece:
    ticks = nbytes = uncovered = 0.0
    for table in tables:
        before = tuple(first[index] for index in table.scope)
        after = tuple((second if index in part else first)[index] for index in table.scope)
        ticks += float(table.ticks[after] - table.ticks[before])
        nbytes += float(table.nbytes[after] - table.nbytes[before])
        uncovered += float(table.uncovered[after] - table.uncovered[before])
    return Piece(part, ticks, nbytes, uncovered)


def exchanged(
    first: tuple[int, ...], second: tuple[int, ...], taken: list[Piece]
) -> tuple[int, ...]:
    """The first assignment with these pieces of the second."""
    states = list(first)
    for piece in taken:
        for index in piece.variables:
            states[index] = second[index]
    return tuple(states)


def mixtures(
    network: Network, first: tuple[int, ...], second: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    """From the first assignment to the second: ever more pieces, the best savers per tick first.

    Saved are bytes, or uncovered ticks where bytes are the same.
    """
    found = pieces(network, first, second)
    saves_bytes = sum(piece.nbytes for piece in found) != 0

    def per_tick(piece: Piece) -> float:
        saved = -piece.nbytes if saves_bytes else -piece.uncovered
        if piece.ticks <= 0:
            return math.inf if saved >= 0 else -math.inf
        return saved / piece.ticks

    ordered = sorted(found, key=per_tick, reverse=True)
    for count in range(1, len(ordered)):
        yield exchanged(first, second, ordered[:count])
