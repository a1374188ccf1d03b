"""Pieces that are priced become ways: figures of all ranges from one sweep, as sums over pieces.

The relaxation, against a stage that is compiled by itself:

- all pieces of a range follow one decision for the whole graph, made for a middle way between time and
  memory; the compiled stage chooses for itself, and within its own memory;
- a tensor that several pieces keep counts where it is kept first, and again behind every cut;
- operators that every stage has for itself (masks, positions) count in every piece;
- weights that are gathered together, and buckets of gradients, end at pieces: each has its own latency;
- blocks of a range recompute alike, or by thirds in two modes; the compiled stage decides for each;
- a block is recomputed piece by piece, so that one of several pieces keeps more than it would in one;
- a parameter that several pieces read rests once in a range; sums over copies of it are free.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autopar.ir.mesh import Mesh
from autopar.cost.spent import Spent
from autopar.pipeline.planner.table import Array, StageOption

Tie = tuple[int, int, float]
"""Two pieces, the first and a later one, that read the same parameter, and its bytes at rest."""


@dataclass(frozen=True, eq=False)
class Chain:
    """For every piece of the whole graph, the piece of the folded one that is `like` it, and the number
    of its `block`."""

    like: tuple[int, ...]
    block: tuple[int, ...]
    positions: tuple[int, ...]

    def in_turn(self, figures: Sequence[Sequence[Spent]]) -> tuple[Spent, ...]:
        """Figures of the folded graph's pieces in several modes, which blocks take in turn."""
        return tuple(
            figures[block % len(figures)][like]
            for like, block in zip(self.like, self.block, strict=True)
        )


@dataclass(frozen=True, eq=False)
class Ranges:
    """Figures of pieces -> arrays [start, end] of all ranges of them.

    Ways of one decision have most figures in common: what is equal is one array.
    """

    chain: Chain
    _known: dict[object, Array] = field(default_factory=dict)

    def summed(self, of: Sequence[float]) -> Array:
        """Over the pieces of a range; 0 where there is none."""
        each = np.array(of)
        before = np.concatenate(([0.0], each.cumsum()))[list(self.chain.positions)]

        def make() -> Array:
            between = np.maximum(0.0, before[None, :] - before[:, None])
            return np.where(self._behind, between, 0.0)

        return self._once(("sum", before.tobytes()), make)

    def seconds(self, of: Sequence[float], at_ends: Array | None = None) -> Array:
        """Sums, and what both ends [position] of a range add; infinite where there is none."""
        summed = self.summed(of)
        added = np.zeros(len(self.chain.positions)) if at_ends is None else at_ends

        def make() -> Array:
            return np.where(self._behind, summed + (added[:, None] + added[None, :]), np.inf)

        return self._once(("seconds", id(summed), added.tobytes()), make)

    def largest(self, of: Sequence[float]) -> Array:
        """Of the pieces of a range; 0 where there is none."""
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
        """Where a range ends behind its start."""
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
    """Figures of pieces of the whole graph -> figures of all its ranges.

    `handled`: what sending or receiving all that crosses there takes, at every position; gradients.
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
    """Parameters that two pieces of a range read rest once."""
    if not ties:
        return rest
    place = np.array(positions)
    for first, later, nbytes in ties:
        both = (place[:, None] <= first) & (later < place[None, :])
        rest = np.where(both, rest - nbytes, rest)
    return np.maximum(0.0, rest)
