"""What of a backward and of its gradients' sums is beside each other: buckets fill on the way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from autopar.ir.blocks import is_expensive
from autopar.ir.graph import Graph, Tensor
from autopar.plans.buckets import buckets


def covering(graph: Graph, shares: int) -> Mapping[str, float]:
    """Of each operator's backward the share beside which reductions can run; gradients make `shares`
    buckets at least.

    Before the first bucket is full there is nothing to sum; from there until the second is, only the
    first, which is smaller: as a link that is worth waiting for is busy with a full bucket for as long
    as the next one fills, it rests for the difference.  What a plan cuts off parameters makes buckets
    wait for more of them, which is left out: this goes by the graph alone.
    """
    trained = [tensor for tensor in _parameters(graph)[::-1] if tensor.name in graph.reached]
    places = buckets([tensor.nbytes for tensor in trained], shares=shares)
    filled = [[trained[place] for place in each] for each in places]
    at = {node.name: place for place, node in enumerate(graph.nodes)}
    full = [min(_whole(tensor, graph, at) for tensor in bucket) for bucket in filled[:2]]
    return {name: _share(place, full, filled) for name, place in at.items()}


def late(graph: Graph) -> Set[str]:
    """Parameters whose gradients are whole when no product is left to go back: a bucket with one of
    these is full when the backward has as good as ended.  So is one with a gradient that never comes.
    """
    at = {node.name: place for place, node in enumerate(graph.nodes)}
    going_back = [
        at[node.name]
        for node in graph.nodes
        if is_expensive(node) and any(tensor.name in graph.reached for tensor in node.outputs)
    ]
    trained = [tensor for tensor in _parameters(graph) if tensor.differentiable]
    reached = [tensor for tensor in trained if tensor.name in graph.reached]
    whole = {tensor.name: _whole(tensor, graph, at) for tensor in reached}
    first = max(min(going_back, default=0), min(whole.values(), default=0))
    return {tensor.name for tensor in trained if whole.get(tensor.name, 0) <= first}


def _parameters(graph: Graph) -> list[Tensor]:
    return [node.outputs[0] for node in graph.parameters_as_read]


def _whole(tensor: Tensor, graph: Graph, at: Mapping[str, int]) -> int:
    """The place of the operator that completes a gradient, its parameter's first reader."""
    return min(at[node.name] for node in graph.consumers[tensor.name])


def _share(place: int, full: Sequence[int], filled: Sequence[Sequence[Tensor]]) -> float:
    if not full or place >= full[0]:
        return 0.0
    # What fills last is summed after the backward: if that is the second, the first has it all.
    if len(filled) < 3 or place < full[1]:
        return 1.0
    first, second = (sum(tensor.nbytes for tensor in bucket) for bucket in filled[:2])
    return min(1.0, first / second)
