"""Selects where stages may begin: a few dozen narrow places, the same in every repeated block.

At a *narrow* place fewer bytes cross than in its neighbourhood.  Of two places with little work between
them, the wider one is dropped.  Narrow places divide the graph into *pieces*, which are priced.
*Positions* are the places at which the planner may cut: all narrow places, or one per repeated block if
there would be too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from autopar.capture import repeats
from autopar.ir.graph import Graph
from autopar.ir.split import computing, crossing_nbytes, shared
from autopar.pipeline.build.cuts import narrow_cuts
from autopar.rules.work import flops

MOST = 64
"""The maximum number of positions, unless there are more repeated blocks."""
NEAR = 1 / 3
"""Fraction of the mean work between positions; of places closer than that, the narrowest is kept."""


@dataclass(frozen=True)
class Places:
    """Pieces of a graph, and the positions at which the planner may cut.

    `pieces` are the first operators of all pieces but the first.  `positions` are the indices of
    pieces that may begin a stage, from 0 for the first piece; the last entry is the number of pieces.
    """

    pieces: tuple[str, ...]
    positions: tuple[int, ...]

    def cut(self, position: int) -> str:
        """Return the first operator of a stage that begins at this position."""
        return self.pieces[self.positions[position] - 1]


def places(graph: Graph) -> Places:
    """Return the places of a graph."""
    pieces = _narrowest(graph)
    most = MOST
    if len(pieces) > MOST:
        pieces = _one_per_block(graph, pieces)
        most = max(MOST, *(2 * repeat.count for repeat in repeats(graph)), 0)
    last = len(pieces)
    chosen = range(last) if last <= most else _evenly(last, most)
    return Places(pieces, (0, *(at + 1 for at in chosen), last + 1))


def forced(cuts: Sequence[str]) -> Places:
    """Return places with only the cuts that the user gave."""
    return Places(tuple(cuts), tuple(range(len(cuts) + 2)))


def _narrowest(graph: Graph) -> tuple[str, ...]:
    """Return the narrow cuts without those that have a narrower one nearby."""
    cuts = narrow_cuts(graph)
    nbytes = dict(crossing_nbytes(graph))
    before = _work_before(graph)
    near = NEAR * before[""] / max(MOST, *(repeat.count for repeat in repeats(graph)), 1)
    kept = []
    for place, cut in enumerate(cuts):
        around = cuts[max(0, place - 8) : place + 9]
        close = (other for other in around if abs(before[other] - before[cut]) <= near)
        if nbytes[cut] <= min(nbytes[other] for other in close):
            kept.append(cut)
    return tuple(kept)


def _work_before(graph: Graph) -> dict[str, float]:
    """Return the FLOPs before each operator, and the total under ""."""
    everywhere = shared(graph)
    operators = [node for node in computing(graph) if node.name not in everywhere]
    sums = accumulate((flops(node, graph) for node in operators), initial=0.0)
    return dict(zip([*(node.name for node in operators), ""], sums, strict=True))


def _one_per_block(graph: Graph, pieces: Sequence[str]) -> tuple[str, ...]:
    """Return all pieces outside repeats and one per copy inside: the narrowest, at the same offset."""
    nbytes = dict(crossing_nbytes(graph))
    index = {node.name: place for place, node in enumerate(graph.nodes)}
    left = set(pieces)
    for repeat in repeats(graph):
        inside = [cut for cut in pieces if repeat.start <= index[cut] < repeat.stop]
        middle = [cut for cut in inside if index[cut] in repeat.block(1)]
        if not middle:
            continue
        best = min(middle, key=lambda cut: (nbytes[cut], index[cut]))
        offset = index[best] - repeat.start - repeat.period
        kept = {repeat.start + copy * repeat.period + offset for copy in range(repeat.count)}
        left -= {cut for cut in inside if index[cut] not in kept}
    return tuple(cut for cut in pieces if cut in left)


def _evenly(count: int, most: int) -> list[int]:
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
