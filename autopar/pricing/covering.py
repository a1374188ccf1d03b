"""Which operators go back beside the reductions of gradients: none does before a bucket is full."""

from __future__ import annotations

from collections.abc import Set

from autopar.buckets import buckets
from autopar.graph import Graph


def covering(graph: Graph) -> Set[str]:
    """Names of the operators that go back once the first bucket has every gradient it waits for.

    A gradient is whole when the first reader of its parameter has gone back.  What a plan cuts off
    parameters makes the bucket wait for more of them, which is left out: this goes by the graph alone.
    """
    leaves = [node.outputs[0] for node in reversed(graph.leaves("parameter"))]
    trained = [tensor for tensor in leaves if tensor.name in graph.reached]
    first = next(buckets([tensor.nbytes for tensor in trained]), [])
    readers = {node.name for place in first for node in graph.consumers[trained[place].name]}
    found = set[str]()
    for node in graph.nodes:
        if node.name in readers:
            return found
        if not node.is_leaf:
            found.add(node.name)
    return found
