"""Builds ways from priced pieces: the figures of all ranges, as sums over their pieces.

Approximations, compared with a stage that is compiled separately:

- all pieces of a range follow one decision for the whole graph, a compromise between time and
  memory; a compiled stage is solved separately, within its own memory;
- a tensor that several pieces keep counts where it is kept first, and again after every cut;
- operators that every stage computes itself (masks, positions) count in every piece;
- groups of gathered weights and gradient buckets end at piece borders: each piece has its own latency;
- all blocks of a range use one recomputation mode, or two modes in thirds; a compiled stage decides for
  each block;
- a block is recomputed piece by piece, so a block of several pieces keeps more than it would as a whole;
- a parameter that several pieces read is stored once in a range; gradient sums over its copies are free.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autopar.cost.spent import Spent
from autopar.ir.mesh import Mesh
from autopar.pipeline.planner.table import Array, StageOption

Tie = tuple[int, int, float]
"""Two pieces, an earlier and a later one, that read the same parameter, and its bytes at rest."""


@dataclass(frozen=True, eq=False)
class Chain:
    """The pieces of the whole graph in terms of those of the folded graph.

    For each piece, `like` is the equal piece of the folded graph and `block` its block number.
    """

    like: tuple[int, ...]
    block: tuple[int, ...]
    positions: tuple[int, ...]

    def in_turn(self, figures: Sequence[Sequence[Spent]]) -> tuple[Spent, ...]:
        """Return the figures of the whole graph's pieces; blocks use the modes of `figures` in turn.

        `figures` has, per mode, those of the folded graph's pieces.
        """
        return tuple(
            figures[block % len(figures)][like]
            for like, block in zip(self.like, self.block, strict=True)
        )


@dataclass(frozen=True, eq=False)
class Ranges:
    """Converts figures of pieces to arrays [start, end] over all ranges.

    Ways of one decision share most figures, so equal arrays are one object.
    """

    chain: Chain
    _known: dict[object, Array] = field(default_factory=dict)

    def summed(self, of: Sequence[float]) -> Array:
        """Return sums over the pieces of each range; 0 where there is no range."""
        each = np.array(of)
        before = np.concatenate(([0.0], each.cumsum()))[list(self.chain.positions)]

        def make() -> Array:
            between = np.maximum(0.0, before[None, :] - before[:, None])
            return np.where(self._behind, between, 0.0)

        return self._once(("sum", before.tobytes()), make)

    def seconds(self, of: Sequence[float], at_ends: Array | None = None) -> Array:
        """Return sums plus `at_ends` [position] at both ends; infinite where there is no range."""
        summed = self.summed(of)
        added = np.zeros(len(self.chain.positions)) if at_ends is None else at_ends

        def make() -> Array:
            return np.where(self._behind, summed + (added[:, None] + added[None, :]), np.inf)

        return self._once(("seconds", id(summed), added.tobytes()), make)

    def largest(self, of: Sequence[float]) -> Array:
        """Return the maximum over the pieces of each range; 0 where there is no range."""
        pairs = itertools.pairwise(self.chain.positions)
        between = np.array([max(of[a:b]) for a, b in pairs])

        def make() -> Array:
            found = np.zeros(self._behind.shape)
            for start in range(len(between)):
                found[start, start + 1 :] = np.maximum.accumulate(between[start:])
            return found

        return self._once(("largest", between.tobytes()), make)

    def _once(self, key: object, make: Callable[[], Array]) -> Array:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    @cached_property
    def _behind(self) -> NDArray[np.bool_]:
        """Mask of the ranges that end after their start."""
        size = len(self.chain.positions)
        return np.triu(np.ones((size, size), dtype=bool), 1)


def way(
    name: str,
    mesh: Mesh,
    hosts: int,
    ranges: Ranges,
    figures: Sequence[Spent],
    ties: Sequence[Tie],
    border: int,
    handled: tuple[Array, Array],
) -> StageOption:
    """Return the option with the figures of all ranges, from those of the whole graph's pieces.

    `handled` has, per position, a rank's own seconds to send or receive what crosses there:
    activations, and gradients.
    """

    def summed(of: Callable[[Spent], float]) -> Array:
        return ranges.summed([of(piece) for piece in figures])

    def seconds(of: Callable[[Spent], float], at_ends: Array | None = None) -> Array:
        return ranges.seconds([of(piece) for piece in figures], at_ends)

    hideable, covers = summed(lambda f: f.hideable_s), summed(lambda f: f.covers_s)
    hidden = np.minimum(hideable, covers)
    forward, back = handled
    return StageOption(
        name,
        hosts,
        mesh.world_size // hosts,
        seconds(lambda f: f.forward_s, forward),
        seconds(lambda f: f.input_grad_s, back),
        seconds(lambda f: f.weight_grad_s),
        _without_twice(summed(lambda f: f.rest_nbytes), ties, ranges.chain.positions),
        summed(lambda f: f.kept_nbytes),
        ranges.largest([piece.working_nbytes for piece in figures]),
        summed(lambda f: f.exposed_s) + hideable - hidden,
        hidden,
        split_s=seconds(lambda f: f.split_s),
        entry=border,
        exit=border,
    )


def _without_twice(rest: Array, ties: Sequence[Tie], positions: Sequence[int]) -> Array:
    """Return the bytes at rest with parameters that two pieces of a range read counted once."""
    if not ties:
        return rest
    place = np.array(positions)
    for first, later, nbytes in ties:
        both = (place[:, None] <= first) & (later < place[None, :])
        rest = np.where(both, rest - nbytes, rest)
    return np.maximum(0.0, rest)
