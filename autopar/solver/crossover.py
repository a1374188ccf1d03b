"""Mixtures of assignments: what differs between two of them is exchanged piece by piece.

Variables in which the two differ, and which share a table, belong together; each connected piece can
be taken from either assignment, and changes the sums by amounts that do not depend on the others.  Two
neighbours on a convex hull may be all of one kind and all of the other (every layer in this form, or
in that); the best that lies between them is a mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.solver.network import Network
from autopar.solver.problem import Array
from autopar.solver.rows import Goal

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
    joined = {index: {index} for index in differing}
    """By variable: the piece that it is in, one object for all that are in it."""
    touched: dict[int, int] = {}
    for number, table in enumerate(network.tables):
        inside = [index for index in table.scope if index in differing]
        for index in inside:
            _join(joined, inside[0], index)
        if inside:
            touched[number] = inside[0]
    distinct = {id(part): part for part in joined.values()}.values()
    parts = sorted(tuple(sorted(part)) for part in distinct)
    part_of = {index: place for place, part in enumerate(parts) for index in part}
    changes = np.zeros((len(parts), len(network.free)))
    change = network.entries(second) - network.entries(first)
    places = np.array([part_of[index] for index in touched.values()], dtype=np.intp)
    np.add.at(changes, places, change[np.array(list(touched), dtype=np.intp)])
    return [Piece(part, change) for part, change in zip(parts, changes, strict=True)]


def _join(joined: dict[int, set[int]], first: int, second: int) -> None:
    """The pieces of two variables become one: the smaller is poured into the larger."""
    large, small = sorted((joined[first], joined[second]), key=len, reverse=True)
    if large is not small:
        large |= small
        joined.update(dict.fromkeys(small, large))
