"""Which weights are gathered together: those that one block uses, hop by hop, axis by axis."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from autopar.graph import Graph, Node
from autopar.placement import I, R, S, Type
from autopar.plan import Plan, reduction_dtype
from autopar.runtime.together import Group, Member

_BLOCK = re.compile(r"(.*?\.\d+)(?:\.|$)")


@dataclass(frozen=True)
class _Key:
    """What gathers must have in common."""

    block: str
    before: _Key | None
    """The hop before this one: what travels on together has arrived together."""
    hop: int
    axis: int
    target: Type
    dtype: str
    reduce: str | None


def groups(plan: Plan, graph: Graph) -> dict[tuple[str, int], Group]:
    """By weight and hop.  A weight that several blocks use, or that takes two ways, travels alone."""
    found: defaultdict[_Key, list[Member]] = defaultdict(list)
    for node in graph.leaves("parameter"):
        for key, member in _gathers(node, plan, graph):
            found[key].append(member)
    return {
        (member.name, key.hop): _group(key, tuple(members), plan)
        for key, members in found.items()
        if len(members) > 1
        for member in members
    }


def _gathers(node: Node, plan: Plan, graph: Graph) -> Iterator[tuple[_Key, Member]]:
    """The gathers that a weight takes, one after the other, on its way to its only block."""
    tensor = node.outputs[0]
    blocks = {_block(reader.origin.module) for reader in graph.consumers[tensor.name]}
    steps = [c for c in plan.conversions if c.tensor == tensor.name]
    in_a_row = all(a.target == b.source for a, b in itertools.pairwise(steps))
    if len(blocks) != 1 or not in_a_row:
        return
    (block,) = blocks
    reduce = reduction_dtype(tensor.name, graph, plan.precision)
    key = None
    for hop, step in enumerate(steps):
        source, target = step.source.local(step.axis, plan.mesh), step.target[step.axis]
        if not isinstance(source, S) or target not in (R, I) or plan.mesh.sizes[step.axis] == 1:
            return
        key = _Key(block, key, hop, step.axis, target, tensor.dtype, reduce)
        yield key, Member(node.target, source, step.regather)


def _group(key: _Key, members: tuple[Member, ...], plan: Plan) -> Group:
    reduce = None if key.reduce is None else getattr(torch, key.reduce)
    return Group(plan.mesh.names[key.axis], key.target, key.hop, reduce, members)


def _block(path: str) -> str:
    match = _BLOCK.match(path)
    return match[1] if match else ""
