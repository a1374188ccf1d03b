"""Where stages may begin: narrow places of the graph, a few dozen, the same ones in every repeated block.

*Narrow* places are where least crosses, of their neighbourhood; of two with little work between them the
wider one is dropped.  These divide the graph into *pieces*, which are priced.  *Positions* are the
places at which the planner may cut: all of them, or one per repeated block where that would be too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from autopar.capture import repeats
from autopar.cuts import narrow_cuts
from autopar.graph import Graph
from autopar.rules.work import flops
from autopar.split import computing, crossing_nbytes, shared

MOST = 64
"""Positions, where there are no more repeated blocks than that."""
NEAR = 1 / 3
"""Of the mean work between positions: within it the narrower place is meant."""


@dataclass(frozen=True)
class Places:
    """`pieces`: the operators that pieces after the first begin with; `positions`: which may be cut.

    `positions` are numbers of pieces, 0 for the first, and ends with the number of pieces.
    """

    pieces: tuple[str, ...]
    positions: tuple[int, ...]

    def cut(self, position: int) -> str:
        """The operator that a stage begins with."""
        return self.pieces[self.positions[position] - 1]


def places(graph: Graph) -> Places:
    """The places of a graph."""
    pieces = _narrowest(graph)
    chosen = _one_per_block(graph, pieces) if len(pieces) > MOST else list(range(len(pieces)))
    return Places(pieces, (0, *(at + 1 for at in chosen), len(pieces) + 1))


def forced(cuts: Sequence[str]) -> Places:
    """Only where a person says."""
    return Places(tuple(cuts), tuple(range(len(cuts) + 2)))


def _narrowest(graph: Graph) -> tuple[str, ...]:
    """Narrow cuts, but for those that have a narrower one nearby."""
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
    """FLOPs of all operators before each, and under "" of all."""
    everywhere = shared(graph)
    operators = [node for node in computing(graph) if node.name not in everywhere]
    sums = accumulate((flops(node, graph) for node in operators), initial=0.0)
    return dict(zip([*(node.name for node in operators), ""], sums, strict=True))


def _one_per_block(graph: Graph, pieces: Sequence[str]) -> list[int]:
    """Outside of repeats all, inside the narrowest of each copy; evenly fewer where that is too many."""
    nbytes = dict(crossing_nbytes(graph))
    index = {node.name: place for place, node in enumerate(graph.nodes)}
    most = MOST
    chosen: dict[int, tuple[int, int]] = {}
    outside: list[int] = []
    found = repeats(graph)
    for at, cut in enumerate(pieces):
        home = next((r for r in found if r.start <= index[cut] < r.stop), None)
        if home is None:
            outside.append(at)
            continue
        most = max(most, 2 * home.count)
        copy = home.start + (index[cut] - home.start) // home.period * home.period
        chosen[copy] = min(chosen.get(copy, (nbytes[cut], at)), (nbytes[cut], at))
    every = sorted([*outside, *(at for _, at in chosen.values())])
    if len(every) <= most:
        return every
    return sorted({every[round(i * (len(every) - 1) / (most - 1))] for i in range(most)})
