"""Computes which part of the backward can overlap with gradient reductions, from when buckets fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from autopar.ir.blocks import is_expensive
from autopar.ir.graph import Graph, Tensor
from autopar.plans.buckets import buckets


def covering(graph: Graph, shares: int) -> Mapping[str, float]:
    """Return, by operator, the share of its backward with which reductions can overlap.

    Gradients make at least `shares` buckets.  Before the first bucket is full there is nothing to
    reduce.  Until the second is full, only the first one is on the link, and it is smaller: a link that
    is a bottleneck is busy with a full bucket for as long as the next one takes to fill, so that it is
    idle for the difference.  Sharded parameters put more tensors into a bucket, which delays it; this is
    neglected, as only the graph is used.
    """
    trained = [tensor for tensor in _parameters(graph)[::-1] if tensor.name in graph.reached]
    places = buckets([tensor.nbytes for tensor in trained], shares=shares)
    filled = [[trained[place] for place in each] for each in places]
    at = {node.name: place for place, node in enumerate(graph.nodes)}
    full = [min(_whole(tensor, graph, at) for tensor in bucket) for bucket in filled[:2]]
    return {name: _share(place, full, filled) for name, place in at.items()}


def late(graph: Graph) -> Set[str]:
    """Return the parameters whose gradients are complete only after the last expensive backward.

    A bucket that contains one of them is full when the backward has practically ended.  The same holds
    for a parameter that never receives a gradient.
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
    """Return the position of the operator that completes a gradient: its parameter's first reader."""
    return min(at[node.name] for node in graph.consumers[tensor.name])


def _share(place: int, full: Sequence[int], filled: Sequence[Sequence[Tensor]]) -> float:
    if not full or place >= full[0]:
        return 0.0
    # The last bucket is reduced after the backward: with two buckets only the first one overlaps.
    if len(filled) < 3 or place < full[1]:
        return 1.0
    first, second = (sum(tensor.nbytes for tensor in bucket) for bucket in filled[:2])
    return min(1.0, first / second)
