"""How much of an operator's way back reductions of gradients can run beside: buckets fill on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopar.buckets import buckets
from autopar.graph import Graph, Tensor


def covering(graph: Graph, shares: int) -> Mapping[str, float]:
    """Of each operator's backward the share beside which reductions can run; gradients make `shares`
    buckets at least.

    Before the first bucket is full there is nothing to sum; from there until the second is, only the
    first, which is smaller: as a link that is worth waiting for is busy with a full bucket for as long
    as the next one fills, it rests for the difference.  What a plan cuts off parameters makes buckets
    wait for more of them, which is left out: this goes by the graph alone.
    """
    leaves = [node.outputs[0] for node in reversed(graph.leaves("parameter"))]
    trained = [tensor for tensor in leaves if tensor.name in graph.reached]
    places = buckets([tensor.nbytes for tensor in trained], shares=shares)
    filled = [[trained[place] for place in each] for each in places]
    at = {node.name: place for place, node in enumerate(graph.nodes)}
    full = [_whole(bucket, graph, at) for bucket in filled[:2]]
    return {name: _share(place, full, filled) for name, place in at.items()}


def _whole(bucket: Sequence[Tensor], graph: Graph, at: Mapping[str, int]) -> int:
    """The place of the operator that completes a bucket: a gradient waits for its first reader."""
    return min(at[node.name] for tensor in bucket for node in graph.consumers[tensor.name])


def _share(place: int, full: Sequence[int], filled: Sequence[Sequence[Tensor]]) -> float:
    if not full or place >= full[0]:
        return 0.0
    # What fills last is summed after the backward: if that is the second, the first has it all.
    if len(filled) < 3 or place < full[1]:
        return 1.0
    first, second = (sum(tensor.nbytes for tensor in bucket) for bucket in filled[:2])
    return min(1.0, first / second)
