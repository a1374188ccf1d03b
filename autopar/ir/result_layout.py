"""The forms in which tensors leave a graph: whole, or as they are made but never partial."""

from __future__ import annotations

from autopar.ir.graph import Graph, Tensor
from autopar.ir.placement import I, N, P, R, Sharding


def leaving(tensor: Tensor, graph: Graph, made: Sharding) -> Sharding:
    """The form in which a result leaves, given how it is made.

    The loss and a buffer's new value are the same on all ranks.  Other results may stay sharded.  What
    another stage gets has one gradient, which comes back to every replica alike.
    """
    whole = I if tensor.differentiable else N
    if tensor.name == graph.loss or tensor.name in dict(graph.mutations).values():
        return Sharding((whole,) * len(made))
    unfinished = (P, R) if tensor.name in graph.sends else (P,)
    return Sharding(tuple(whole if kind in unfinished else kind for kind in made))
