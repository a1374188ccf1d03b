"""Finds the batch dim of every tensor by propagation through the operators' rules.

It starts as dim 0 of the batch's inputs.  An operator's rule gives the factor that the batch dim of its
operands is, and the position of that factor in the operator's other tensors: ``S(2)`` after a
permutation, ``S(0, of=T)`` if it was merged with a sequence.  Tensors computed from parameters alone
take it from their consumers, such as a token that is expanded for every sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from autopar.ir.graph import Graph, Node
from autopar.ir.placement import S
from autopar.rules.declare import rule_of
from autopar.rules.instance import Instance

BatchDims = Mapping[str, tuple[S | None, ...]]
"""By operator: the batch split of each operand, as the operator reads it, and of each output."""


def batch_dims(graph: Graph, given: Mapping[str, S]) -> BatchDims:
    """Return the batch splits; None if a tensor has no batch dim, or an operator mixes samples.

    `given` are the batch splits of leaves by tensor name.
    """
    found = dict(given)
    operators = [node for node in graph.nodes if not node.is_leaf]
    bound = [(node, rule_of(node, graph)) for node in operators]
    leaves = {tensor.name for node in graph.nodes if node.is_leaf for tensor in node.outputs}
    for backward, order in ((False, bound), (True, bound[::-1]), (False, bound)):
        for node, instance in order:
            dims = _dims(node, instance, found)
            kept = leaves if backward else {*node.operands}
            for name, dim in zip(_tensors(node), dims, strict=True):
                if dim is not None and name not in kept:
                    found.setdefault(name, dim)
    return {node.name: _dims(node, instance, found) for node, instance in bound}


def _tensors(node: Node) -> tuple[str, ...]:
    return (*node.operands, *(tensor.name for tensor in node.outputs))


def _dims(node: Node, instance: Instance, found: Mapping[str, S]) -> tuple[S | None, ...]:
    """Return the position of the batch factor in each of the node's tensors."""
    names = _tensors(node)
    factors = Counter(_factors(node.operands, instance, found)) or Counter(
        _factors(names, instance, found)
    )
    if not factors:
        return (None,) * len(names)
    [(at, _)] = factors.most_common(1)
    terms = (*instance.rule.inputs, *instance.rule.outputs)
    return tuple(instance.shard(term, *at) for term in terms)


def _factors(
    names: tuple[str, ...], instance: Instance, found: Mapping[str, S]
) -> Iterator[tuple[str, int]]:
    """Yield the factors, with positions, of the batch in `names`, the first of the node's tensors."""
    terms = (*instance.rule.inputs, *instance.rule.outputs)
    for name, term in zip(names, terms, strict=False):
        at = instance.factor_at(term, found[name]) if name in found else None
        if at is not None and at[0] not in instance.rule.whole:
            yield at
