"""Pieces that are priced become ways: figures of all ranges from one sweep, as sums over pieces.

The relaxation, against a stage that is compiled by itself:

- all pieces of a range follow one decision for the whole graph, made for a middle way between time and
  memory; the compiled stage chooses for itself, and within its own memory;
- a tensor that several pieces keep counts where it is kept first, and again behind every cut;
- operators that every stage has for itself (masks, positions) count in every piece;
- weights that are gathered together, and buckets of gradients, end at pieces: each has its own latency;
- blocks of a range recompute alike, or take two modes in turn; the compiled stage decides for each;
- a block is recomputed piece by piece, so that one of several pieces keeps more than it would in one;
- a parameter that several pieces read rests once in a range; sums over copies of it are free.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autopar.mesh import Mesh
from autopar.pricing.spent import Spent
from autopar.stages.table import Array, Way

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


def way(
    name: str,
    mesh: Mesh,
    hosts: int,
    chain: Chain,
    figures: Sequence[Spent],
    ties: Sequence[Tie],
    border: int,
    handled: tuple[Array, Array],
) -> Way:
    """Figures of pieces of the whole graph -> figures of all its ranges.

    `handled`: what sending or receiving all that crosses there takes, at every position; gradients.
    """
    size = len(chain.positions)
    behind = np.triu(np.ones((size, size), dtype=bool), 1)

    def summed(of: Callable[[Spent], float]) -> Array:
        each = np.array([of(piece) for piece in figures])
        before = np.concatenate(([0.0], each.cumsum()))[list(chain.positions)]
        return np.where(behind, np.maximum(0.0, before[None, :] - before[:, None]), 0.0)

    hideable, covers = summed(lambda f: f.hideable_s), summed(lambda f: f.covers_s)
    hidden = np.minimum(hideable, covers)

    def seconds(of: Callable[[Spent], float], at_ends: Array | float = 0.0) -> Array:
        return np.where(behind, summed(of) + at_ends, np.inf)

    forward, back = (each[:, None] + each[None, :] for each in handled)

    return Way(
        name,
        hosts,
        mesh.world_size // hosts,
        seconds(lambda f: f.forward_s, forward),
        seconds(lambda f: f.input_grad_s, back),
        seconds(lambda f: f.weight_grad_s),
        _without_twice(summed(lambda f: f.rest_nbytes), ties, chain.positions),
        summed(lambda f: f.kept_nbytes),
        np.where(
            behind,
            _largest([piece.working_nbytes for piece in figures], chain.positions),
            0.0,
        ),
        summed(lambda f: f.exposed_s) + hideable - hidden,
        hidden,
        split_s=seconds(lambda f: f.split_s),
        entry=border,
        exit=border,
    )


def _without_twice(rest: Array, ties: Sequence[Tie], positions: Sequence[int]) -> Array:
    """Parameters that two pieces of a range read rest once."""
    place = np.array(positions)
    for first, later, nbytes in ties:
        both = (place[:, None] <= first) & (later < place[None, :])
        rest = np.where(both, rest - nbytes, rest)
    return np.maximum(0.0, rest)


def _largest(each: Sequence[float], positions: Sequence[int]) -> Array:
    """[start, end]: the largest of the pieces between."""
    size = len(positions)
    between = [max(each[a:b]) for a, b in itertools.pairwise(positions)]
    found = np.zeros((size, size))
    for start in range(size - 1):
        found[start, start + 1 :] = np.maximum.accumulate(between[start:])
    return found
