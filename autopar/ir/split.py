"""Splits a graph into pipeline stages: one graph per stage, and the tensors that cross between them.

A cut is the name of a stage's first operator.  Operators keep their order, so every border is crossed in
one direction only.  Operators without gradient that depend only on inputs, buffers and constants (masks,
positions, rotary tables) are cheap, so every stage that reads them computes its own copy.
"""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.errors import InputError
from autopar.ir.graph import Graph, Node, Tensor, is_random

LISTED = 8
"""Maximum number of operators named in an error message."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor that stage `source` produces and stage `target` reads.

    `returns`: its gradient is sent back.  None is sent if the target reads it only through a `detach`: a
    gradient of zeros would let the optimizer decay weights that it skips in a single process.
    """

    tensor: str
    source: int
    target: int
    returns: bool


@dataclass(frozen=True)
class Stages:
    """The graphs of all stages, and the tensors sent between them."""

    graphs: tuple[Graph, ...]
    crossings: tuple[Crossing, ...]

    @property
    def is_random(self) -> bool:
        """Whether any stage draws random numbers."""
        return any(is_random(node) for graph in self.graphs for node in graph.nodes)

    @property
    def ties(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Parameters that several stages read: (name in the user's module, those stages)."""
        readers: dict[str, list[int]] = {}
        for stage, graph in enumerate(self.graphs):
            for node in graph.leaves("parameter"):
                readers.setdefault(node.target, []).append(stage)
        return tuple((name, tuple(found)) for name, found in readers.items() if len(found) > 1)


def split(graph: Graph, cuts: Sequence[str]) -> Stages:
    """Split a graph before each of these operators.

    Raises `InputError` if a cut is not an operator at which a stage may begin, or cuts are not in order.
    """
    stage_of = _stages_of(graph, cuts)
    reached = graph.reached if graph.loss is None else graph.reached_from([graph.loss])
    found: list[Graph] = []
    crossings: list[Crossing] = []
    for stage in range(len(cuts) + 1):
        nodes, received = _needed(graph, stage, stage_of, len(cuts))
        returning = {
            name
            for node in nodes
            if any(tensor.name in reached for tensor in node.outputs)
            for name in node.operands
        }
        crossings += [
            Crossing(
                t.name, stage_of[graph.producer[t.name].name], stage,
                t.differentiable and t.name in returning,
            )
            for t in received
        ]  # fmt: skip
        found.append(_stage(graph, nodes, received))
    sends = [tuple(dict.fromkeys(c.tensor for c in crossings if c.source == stage))
             for stage in range(len(found))]  # fmt: skip
    graphs = tuple(replace(part, sends=sent) for part, sent in zip(found, sends, strict=True))
    for part in graphs:
        part.check()
    return Stages(graphs, tuple(crossings))


def computing(graph: Graph) -> tuple[Node, ...]:
    """Return the operators (all nodes except leaves), in order."""
    return tuple(node for node in graph.nodes if not node.is_leaf)


def shared(graph: Graph) -> frozenset[str]:
    """Return the names of the operators that every stage which needs them computes itself."""
    found: set[str] = set()
    for node in graph.nodes:
        made = _is_plain(node) and all(graph.producer[n].name in found for n in node.operands)
        if made or node.op in ("input", "constant", "buffer"):
            found.add(node.name)
    return frozenset(name for name in found if not graph.node[name].is_leaf)


def _is_plain(node: Node) -> bool:
    flows = any(tensor.differentiable for tensor in node.outputs)
    return not (node.is_leaf or flows or is_random(node))


def _stages_of(graph: Graph, cuts: Sequence[str]) -> Mapping[str, int]:
    """Return the stage of every operator that runs in one stage only."""
    operators = computing(graph)
    place = {node.name: index for index, node in enumerate(operators)}
    everywhere = shared(graph)
    names = [name for name in place if name not in everywhere][1:]
    for cut in cuts:
        if cut not in names:
            close = difflib.get_close_matches(cut, names, 5) or names[:LISTED]
            raise InputError(
                f"{graph.name} has no operator {cut!r} that a stage could begin with. They have the "
                f"names of operators in the emitted files: {', '.join(close)}."
            )
    starts = [place[cut] for cut in cuts]
    if starts != sorted(set(starts)):
        raise InputError(f"Cuts have to come in the order of the operators: {', '.join(cuts)}.")
    return {
        node.name: bisect_right(starts, index)
        for index, node in enumerate(operators)
        if node.name not in everywhere
    }


def _needed(
    graph: Graph, stage: int, stage_of: Mapping[str, int], last: int
) -> tuple[list[Node], list[Tensor]]:
    """Return the nodes of a stage, and the tensors it receives from earlier stages."""
    wanted = {
        name for name in graph.results if _home(graph.producer[name], stage_of, last) == stage
    }
    wanted |= {t.name for n in graph.nodes if stage_of.get(n.name) == stage for t in n.outputs}
    kept: list[Node] = []
    received: dict[str, Tensor] = {}
    for node in reversed(graph.nodes):
        needed = [tensor for tensor in node.outputs if tensor.name in wanted]
        if not needed:
            continue
        if stage_of.get(node.name, stage) != stage:
            received |= {tensor.name: tensor for tensor in needed}
        else:
            kept.append(node)
            wanted.update(node.operands)
    return kept[::-1], list(received.values())[::-1]


def _home(node: Node, stage_of: Mapping[str, int], last: int) -> int:
    """Return the stage that returns a result: the last one for results that any stage could compute."""
    return stage_of.get(node.name, last)


def _stage(graph: Graph, nodes: list[Node], received: list[Tensor]) -> Graph:
    """Return one stage's graph, without its `sends`."""
    borders = [
        Node(f"received_{tensor.name}", "received", outputs=(tensor,), target=tensor.name)
        for tensor in received
    ]
    leaves = [node for node in nodes if node.is_leaf]
    made = {tensor.name for node in nodes for tensor in node.outputs}
    parameters = {node.target for node in nodes if node.op == "parameter"}
    return Graph(
        graph.name,
        (*leaves, *borders, *(node for node in nodes if not node.is_leaf)),
        graph.loss if graph.loss in made else None,
        tuple(pair for pair in graph.outputs if pair[1] in made),
        tuple(pair for pair in graph.aliases if pair[1] in parameters),
        tuple(pair for pair in graph.mutations if pair[1] in made),
        graph.returns,
    )


def crossing_nbytes(graph: Graph) -> Iterator[tuple[str, int]]:
    """Yield every possible cut with the bytes of all tensors that would cross it, without gradients."""
    for name, tensors in crossing(graph):
        yield name, sum(tensor.nbytes for tensor in tensors)


def crossing(graph: Graph) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """Yield every possible cut with the tensors that would cross it."""
    everywhere = shared(graph)
    operators = [node for node in computing(graph) if node.name not in everywhere]
    place = {node.name: index for index, node in enumerate(operators)}
    last_read = {
        tensor.name: max(
            (place.get(reader.name, -1) for reader in graph.consumers[tensor.name]), default=-1
        )
        for node in operators
        for tensor in node.outputs
    }
    open_: dict[str, Tensor] = {}
    for index, node in enumerate(operators):
        open_ = {name: tensor for name, tensor in open_.items() if last_read[name] >= index}
        if index:
            yield node.name, tuple(open_.values())
        open_ |= {tensor.name: tensor for tensor in node.outputs}
