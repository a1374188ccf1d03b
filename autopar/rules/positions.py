"""Finds the shards of each tensor that the candidates consider, as a fixpoint through the rules.

Every dim of a weight or a result may be split as a whole, ``S(d)``.  Views, splits and concatenations
map such a split to other positions, ``S(1, of=3)`` in a fused weight or ``S(0, of=B)`` in a merged dim.
The rules propagate each position to every tensor that shares the factor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from autopar.ir.graph import Graph, Node
from autopar.ir.placement import S
from autopar.rules.declare import rule_of
from autopar.rules.instance import Instance

Positions = Mapping[str, frozenset[S]]
MAX_PER_TENSOR = 24
"""Limit that guarantees termination on graphs whose views keep producing new positions."""


def positions(graph: Graph, smallest_axis: int) -> Positions:
    """Return the shards by tensor name, starting from dims of at least `smallest_axis` entries."""
    found: dict[str, frozenset[S]] = {}
    for tensor in graph.tensors.values():
        sizes = enumerate(tensor.shape)
        found[tensor.name] = frozenset(S(dim) for dim, n in sizes if n >= smallest_axis and n > 1)
    known: dict[object, tuple[Instance, tuple[frozenset[S], ...]]] = {}
    waiting = deque(node for node in graph.nodes if not node.is_leaf)
    queued = {node.name for node in waiting}
    while waiting:
        node = waiting.popleft()
        queued.discard(node.name)
        instance = rule_of(node, graph)
        names = (*node.operands, *(tensor.name for tensor in node.outputs))
        before = tuple(found[name] for name in names)
        # Identical layers give identical keys, so each case is computed once.
        question = (id(instance), tuple(map(names.index, names)), before)
        if question not in known:
            # The key holds an id: storing the instance keeps it alive, so the id is not reused.
            known[question] = instance, _spread(names, instance, before)
        for name, old, new in zip(names, before, known[question][1], strict=True):
            if len(new) == len(old):
                continue
            found[name] = new
            for neighbour in (graph.producer[name], *graph.consumers[name]):
                if neighbour.name not in queued and not neighbour.is_leaf:
                    queued.add(neighbour.name)
                    waiting.append(neighbour)
    return found


def _spread(
    names: tuple[str, ...], instance: Instance, before: tuple[frozenset[S], ...]
) -> tuple[frozenset[S], ...]:
    """Propagate the positions of each of a node's tensors to the others; `names` may repeat."""
    terms = (*instance.rule.inputs, *instance.rule.outputs)
    splits = set()
    for shards, term in zip(before, terms, strict=True):
        for shard in shards:
            at = instance.factor_at(term, shard)
            if at is not None and at[0] not in instance.rule.whole:
                splits.add(at)
    found = {name: set(shards) for name, shards in zip(names, before, strict=True)}
    for name, term in zip(names, terms, strict=True):
        for factor, position in sorted(splits):
            reached = instance.shard(term, factor, position)
            if reached is not None and len(found[name]) < MAX_PER_TENSOR:
                found[name].add(reached)
    return tuple(frozenset(found[name]) for name in names)


def splits_of(
    node: Node, instance: Instance, graph: Graph, found: Positions
) -> tuple[tuple[str, int], ...]:
    """Return the (factor, position) pairs found in any of the node's tensors, in a fixed order."""
    names = (*node.operands, *(tensor.name for tensor in node.outputs))
    terms = (*instance.rule.inputs, *instance.rule.outputs)
    pairs = {
        at
        for name, term in zip(names, terms, strict=True)
        for shard in found[name]
        if (at := instance.factor_at(term, shard)) is not None and at[0] in instance.shardable
    }
    return tuple(sorted(pairs))
