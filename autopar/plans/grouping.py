"""Groups the weight conversions of one block into joint collectives, hop by hop and axis by axis.

Emitted code converts the weights of a run of a block's statements in one call before the first of them,
and the cost model counts one collective (as FSDP units; Zhao et al., VLDB 2023, 3.2.1).  A model that
leaves a block between its layers (``x = x + layer.attention(...)`` in a loop of its own) has several
runs per block.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autopar.ir.blocks import runs
from autopar.ir.graph import Graph, Node
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, N, R, S, Type
from autopar.plans.decisions import Conversion, reduction_dtype


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

    run: int
    """Number of the run of statements that use the weights."""
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
    run_of = runs_of(graph)
    steps_of: defaultdict[str, list[Conversion]] = defaultdict(list)
    for conversion in conversions:
        steps_of[conversion.tensor].append(conversion)
    found: defaultdict[_Key, list[Member]] = defaultdict(list)
    for node in graph.leaves("parameter"):
        steps = steps_of[node.outputs[0].name]
        for key, member in _hops(node, steps, graph, mesh, precision, run_of):
            found[key].append(member)
    return tuple(
        Group(mesh.names[key.axis], key.target, key.hop, key.reduce, tuple(members))
        for key, members in found.items()
        if len(members) > 1
    )


def companions(graph: Graph) -> dict[str, float]:
    """Return, by parameter, the bytes of all weights of its run of statements relative to its own.

    These weights may share its collective.  The ratio is 1 for parameters that several blocks use.
    """
    run_of = runs_of(graph)
    nbytes = {node.outputs[0].name: node.outputs[0].nbytes for node in graph.leaves("parameter")}
    weight: Counter[int] = Counter()
    for name, run in run_of.items():
        weight[run] += nbytes[name]
    return {
        name: weight[run_of[name]] / own if name in run_of and own else 1.0
        for name, own in nbytes.items()
    }


def is_gather(source: Type, target: Type) -> bool:
    """Return whether a step gathers a split dim."""
    return isinstance(source, S) and target in (R, I, N)


def _is_joint(source: Type, target: Type) -> bool:
    """Return whether weights of a block share such a step's collective: gathers, and I -> R."""
    return is_gather(source, target) or (source, target) == (I, R)


def runs_of(graph: Graph) -> Mapping[str, int]:
    """Return, by tensor of a parameter, the run that gathers it: the first that uses it.

    Parameters that several runs use are left out, unless the first is outside of all blocks: variables
    of a block's function would have to leave it.
    """
    numbered: dict[str, int] = {}
    outside: set[int] = set()
    for number, (block, places) in enumerate(runs(graph)):
        numbered |= {graph.nodes[place].name: number for place in places}
        if block is None:
            outside.add(number)
    found = {}
    for leaf in graph.leaves("parameter"):
        readers = graph.consumers[leaf.outputs[0].name]
        users = {numbered[reader.name] for reader in readers}
        if users and (len(users) == 1 or min(users) in outside):
            found[leaf.outputs[0].name] = min(users)
    return found


def _hops(
    node: Node,
    steps: list[Conversion],
    graph: Graph,
    mesh: Mesh,
    precision: str,
    run_of: Mapping[str, int],
) -> Iterator[tuple[_Key, Member]]:
    """Yield a weight's steps from its leaf to its run, as long as they can be grouped."""
    tensor = node.outputs[0]
    in_a_row = all(a.target == b.source for a, b in itertools.pairwise(steps))
    if tensor.name not in run_of or not in_a_row:
        return
    reduce = reduction_dtype(tensor.name, graph, precision)
    key = None
    for hop, step in enumerate(steps):
        source, target = step.source.local(step.axis, mesh), step.target[step.axis]
        if not _is_joint(source, target) or mesh.sizes[step.axis] == 1:
            return
        gathers = is_gather(source, target)
        key = _Key(run_of[tensor.name], key, hop, step.axis, gathers, target, tensor.dtype, reduce)
        yield key, Member(node.target, tensor.name, source, step.regather)
