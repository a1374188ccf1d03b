"""Finds where a graph can be cut, and cuts it into stages of equal work, or of given layers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from autopar.errors import InputError
from autopar.ir.blocks import block_of, blocks
from autopar.ir.graph import Graph
from autopar.ir.split import computing, crossing_nbytes, shared
from autopar.request.layers import Layers
from autopar.rules.work import flops

Places = list[tuple[str, int]]


def narrow_cuts(graph: Graph) -> tuple[str, ...]:
    """Return the operators before which the fewest bytes cross in their neighbourhood.

    These cuts are mostly between blocks.  They are local minima among local minima: inside attention,
    next to a residual connection, fewer bytes cross than just before and after, but more than between
    layers.
    """
    valleys = _valleys(list(crossing_nbytes(graph)), strict=True)
    return tuple(name for name, _ in _valleys(valleys, strict=False))


def _valleys(places: Places, strict: bool) -> Places:
    """Return the local minima of crossing bytes; `strict`: fewer bytes than at the next place."""
    sizes = [float("inf"), *(nbytes for _, nbytes in places), float("inf")]
    return [
        place
        for place, before, here, after in zip(places, sizes, sizes[1:], sizes[2:], strict=False)
        if here <= before and (here < after or (not strict and here == after))
    ]


def places_for(graph: Graph, stages: int) -> tuple[str, ...]:
    """Return places to cut a graph into this many stages, from the narrowest kind with enough places.

    If the graph allows it, every stage reads parameters of its own.  Raises `InputError` if the graph
    has too few places for this many stages.
    """
    every = tuple(name for name, _ in crossing_nbytes(graph))
    sorts = (_reading(graph, narrow_cuts(graph)), _reading(graph, every), every)
    found = next((cuts for cuts in sorts if len(cuts) >= stages - 1), None)
    if found is None:
        raise InputError(
            f"{graph.name} can be cut at {len(every)} places, into {len(every) + 1} stages at most, "
            f"not {stages}."
        )
    return found


def balanced(graph: Graph, shares: Sequence[float]) -> tuple[str, ...]:
    """Return cuts into stages with FLOPs proportional to the shares, as nearly as narrow places allow.

    Raises `InputError` if there are too few places.
    """
    places = places_for(graph, len(shares))
    return divided(graph, places, shares, {n.name: flops(n, graph) for n in computing(graph)})


def between_layers(graph: Graph, layers: Layers, stages: int) -> tuple[str, ...]:
    """Return cuts between layers, into stages with the given numbers of them.

    Layers are the blocks of the model (`autopar.ir.blocks`), or, if it has none, its numbered modules.
    Raises `InputError` if they cannot be divided so.
    """
    starts = _layer_starts(graph)
    counts = layers.counts(stages, len(starts) - 1)
    return tuple(starts[before] for before in accumulate(counts[:-1]))


def _layer_starts(graph: Graph) -> list[str]:
    """Return the first operator of each layer, and the first after the last layer ("" for none)."""
    prefixes = {block.path.rpartition(".")[0] for block in blocks(graph)}
    everywhere, after = shared(graph), ""
    starts: dict[tuple[str, int], str] = {}
    for node in computing(graph):
        if node.name in everywhere:
            continue
        where = block_of(node.origin)
        if where is not None and where[0] in (prefixes or {where[0]}):
            starts.setdefault(where, node.name)
            after = ""
        else:
            after = after or node.name
    return [*starts.values(), after]


def divided(
    graph: Graph, places: Sequence[str], shares: Sequence[float], work: Mapping[str, float]
) -> tuple[str, ...]:
    """Return cuts at some of these places, into stages with work proportional to the shares.

    `work` is by operator.
    """
    before = _work_before(graph, places, work)
    return tuple(places[place] for place in _fair(before, shares))


def _reading(graph: Graph, cuts: Sequence[str]) -> tuple[str, ...]:
    """Return cuts with parameters read before the first, between any two, and after the last."""
    parameters = {node.outputs[0].name for node in graph.leaves("parameter")}
    last_count, found, wanted = 0, [], set(cuts)
    reads = [parameters & set(node.operands) for node in graph.nodes]
    left = sum(map(bool, reads))
    seen = 0
    for node, read in zip(graph.nodes, reads, strict=True):
        if node.name in wanted and last_count < seen < left:
            found.append(node.name)
            last_count = seen
        seen += bool(read)
    return tuple(found)


def _work_before(graph: Graph, places: Sequence[str], work: Mapping[str, float]) -> list[float]:
    """Return the fraction of the work before each place; operators without work count a little."""
    everywhere = shared(graph)
    operators = [node.name for node in computing(graph) if node.name not in everywhere]
    index = {name: place for place, name in enumerate(operators)}
    each = [work[name] for name in operators]
    least = sum(each) * 1e-6 / len(each) or 1.0
    before = [0.0, *accumulate(value + least for value in each)]
    return [before[index[place]] / before[-1] for place in places]


def _fair(work: Sequence[float], shares: Sequence[float]) -> list[int]:
    """Return the indices that minimise the largest ratio of a stage's work to its share.

    `work` has the increasing fractions of the work before each place.
    """
    whole = sum(shares)
    part = [share / whole for share in shares]

    def fill(most: float) -> list[int] | None:
        """Fill each stage greedily up to `most` times its share; return None if that is not enough."""
        found: list[int] = []
        start = 0.0
        for stage in range(len(part) - 1):
            left = len(part) - 2 - stage
            last = bisect_right(work, start + most * part[stage] + 1e-12) - 1
            first = found[-1] + 1 if found else 0
            chosen = min(max(last, first), len(work) - 1 - left)
            found.append(chosen)
            start = work[chosen]
        loads = [b - a for a, b in zip([0.0, *(work[i] for i in found)],
                                       [*(work[i] for i in found), 1.0], strict=True)]  # fmt: skip
        fits = all(load <= most * share + 1e-12 for load, share in zip(loads, part, strict=True))
        return found if fits else None

    low, high = 0.0, 1.0 / min(part) + 1.0
    best = fill(high)
    for _ in range(50):
        middle = (low + high) / 2
        found = fill(middle)
        low, high, best = (low, middle, found) if found is not None else (middle, high, best)
    assert best is not None
    return best
