"""Finds gradients that occupy memory of their own under every plan, for memory lower bounds."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.ir.graph import SAVES_NOTHING, Graph, Node, Saved
from autopar.ir.mesh import Mesh
from autopar.memory.shards import local_nbytes
from autopar.plans.decisions import OpSharding


def full_gradients(graph: Graph, saved: Mapping[str, Saved]) -> frozenset[str]:
    """Return the tensors whose gradient has storage for every element.

    Counterexample: the gradient of a sum's operand is one expanded number.
    """
    found = {name for name in graph.results if name in graph.reached}
    for node in reversed(graph.nodes):
        for tensor in node.outputs:
            readers = [each for each in graph.consumers[tensor.name] if _goes_back(each, graph)]
            if tensor.name not in graph.reached or not readers:
                continue
            if all(_fills(each, tensor.name, graph, saved, found) for each in readers):
                found.add(tensor.name)
    return frozenset(found)


def _fills(node: Node, name: str, graph: Graph, saved: Mapping[str, Saved], full: set[str]) -> bool:
    """Return whether a reader produces a full gradient: a new one, or that of a full output."""
    source = _passes(node, saved)[node.operands.index(name)]
    if source is None:
        return True
    above = node.outputs[source]
    return above.name in full and above.nbytes >= graph.tensors[name].nbytes


def fresh_nbytes(
    node: Node,
    sharding: OpSharding,
    graph: Graph,
    mesh: Mesh,
    saved: Mapping[str, Saved],
    full: frozenset[str],
) -> int:
    """Return a rank's gradient bytes in an operator's backward: all it produces, one it consumes."""
    if node.is_leaf or not _goes_back(node, graph):
        return 0
    made = {
        (name, form)
        for name, form, source in zip(
            node.operands, sharding.inputs, _passes(node, saved), strict=True
        )
        if source is None and graph.tensors[name].differentiable
    }
    taken = [
        local_nbytes(tensor, form, mesh)
        for tensor, form in zip(node.outputs, sharding.outputs, strict=True)
        if tensor.name in full
    ]
    own = sum(local_nbytes(graph.tensors[name], form, mesh) for name, form in made)
    return own + max(taken, default=0)


def _passes(node: Node, saved: Mapping[str, Saved]) -> tuple[int | None, ...]:
    return saved.get(node.name, SAVES_NOTHING).passes or (None,) * len(node.operands)


def _goes_back(node: Node, graph: Graph) -> bool:
    return any(tensor.name in graph.reached for tensor in node.outputs)
