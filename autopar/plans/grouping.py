"""Groups the weight conversions of one block into joint collectives, hop by hop and axis by axis.

Emitted code converts each weight where it is used.  The runtime converts those of a whole block at once,
and the cost model counts one collective (as FSDP units; Zhao et al., VLDB 2023, 3.2.1).
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autopar.ir.graph import Graph, Node
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, N, R, S, Type
from autopar.plans.decisions import Conversion, reduction_dtype

_BLOCK = re.compile(r"(.*?\.\d+)(?:\.|$)")


@dataclass(frozen=True)
class Member:
    """One weight's step, as it appears in emitted code; `source` is the type local to a rank."""

    name: str
    tensor: str
    source: Type
    regather: bool


@dataclass(frozen=True)
class Group:
    """Steps of one block's weights on one axis: step number `hop` from each weight's leaf to its use."""

    axis: str
    target: Type
    hop: int
    reduce: str | None
    """The dtype in which gradients are reduced, None for their own."""
    members: tuple[Member, ...]


@dataclass(frozen=True)
class _Key:
    """The properties that all steps of a group have in common."""

    block: str
    before: _Key | None
    """The key of the previous hop: weights are grouped again only if they were grouped there."""
    hop: int
    axis: int
    is_gather: bool
    target: Type
    dtype: str
    reduce: str | None


def groups(
    graph: Graph, conversions: Sequence[Conversion], mesh: Mesh, precision: str
) -> tuple[Group, ...]:
    """Return the groups of two or more weights.

    A weight that several blocks use, or whose conversions branch, is converted alone.
    """
    steps_of: defaultdict[str, list[Conversion]] = defaultdict(list)
    for conversion in conversions:
        steps_of[conversion.tensor].append(conversion)
    found: defaultdict[_Key, list[Member]] = defaultdict(list)
    for node in graph.leaves("parameter"):
        steps = steps_of[node.outputs[0].name]
        for key, member in _hops(node, steps, graph, mesh, precision):
            found[key].append(member)
    return tuple(
        Group(mesh.names[key.axis], key.target, key.hop, key.reduce, tuple(members))
        for key, members in found.items()
        if len(members) > 1
    )


def companions(graph: Graph) -> dict[str, float]:
    """Return, by parameter, the bytes of all weights of its block relative to its own.

    These weights may share its collective.  The ratio is 1 for parameters that several blocks use.
    """
    nbytes = {node.outputs[0].name: node.outputs[0].nbytes for node in graph.leaves("parameter")}
    blocks_of = {name: _blocks(name, graph) for name in nbytes}
    weight: Counter[frozenset[str]] = Counter()
    for name, blocks in blocks_of.items():
        weight[blocks] += nbytes[name]
    return {
        name: weight[blocks] / nbytes[name] if len(blocks) == 1 and nbytes[name] else 1.0
        for name, blocks in blocks_of.items()
    }


def is_gather(source: Type, target: Type) -> bool:
    """Return whether a step gathers a split dim."""
    return isinstance(source, S) and target in (R, I, N)


def _is_joint(source: Type, target: Type) -> bool:
    """Return whether weights of a block share such a step's collective: gathers, and I -> R."""
    return is_gather(source, target) or (source, target) == (I, R)


def _blocks(tensor: str, graph: Graph) -> frozenset[str]:
    return frozenset(_block(reader.origin.module) for reader in graph.consumers[tensor])


def _hops(
    node: Node, steps: list[Conversion], graph: Graph, mesh: Mesh, precision: str
) -> Iterator[tuple[_Key, Member]]:
    """Yield a weight's steps from its leaf to its only block, as long as they can be grouped."""
    tensor = node.outputs[0]
    blocks = _blocks(tensor.name, graph)
    in_a_row = all(a.target == b.source for a, b in itertools.pairwise(steps))
    if len(blocks) != 1 or not in_a_row:
        return
    (block,) = blocks
    reduce = reduction_dtype(tensor.name, graph, precision)
    key = None
    for hop, step in enumerate(steps):
        source, target = step.source.local(step.axis, mesh), step.target[step.axis]
        if not _is_joint(source, target) or mesh.sizes[step.axis] == 1:
            return
        gathers = is_gather(source, target)
        key = _Key(block, key, hop, step.axis, gathers, target, tensor.dtype, reduce)
        yield key, Member(node.target, tensor.name, source, step.regather)


def _block(path: str) -> str:
    match = _BLOCK.match(path)
    return match[1] if match else ""
