"""Shardings in which tensors leave a graph: replicated, or as produced but never as partial sums."""

from __future__ import annotations

from autopar.ir.graph import Graph, Tensor
from autopar.ir.placement import I, N, P, R, Sharding


def leaving(tensor: Tensor, graph: Graph, made: Sharding) -> Sharding:
    """Return the sharding in which a result leaves, given the one in which it is produced.

    The loss and new buffer values are equal on all ranks.  Other results may stay sharded.  A tensor
    sent to another stage has one gradient, which is the same on every replica, so it cannot be `R`.
    """
    whole = I if tensor.differentiable else N
    if tensor.name == graph.loss or tensor.name in dict(graph.mutations).values():
        return Sharding((whole,) * len(made))
    unfinished = (P, R) if tensor.name in graph.sends else (P,)
    return Sharding(tuple(whole if kind in unfinished else kind for kind in made))
