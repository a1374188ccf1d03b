"""Transfers the cuts of a model's graph to another graph of the model (evaluation mode, other shapes).

Weights stay on the stages that read them in the first graph.  The other graph can have other operators
(in evaluation mode, batch norm is one operator and dropout is none).  So names alone do not determine
its cuts: every stage must read only weights that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autopar.errors import InputError
from autopar.ir.graph import Graph, Node
from autopar.ir.split import computing, shared, split
from autopar.utils.messages import argument

Holders = frozenset[int]
"""Stages that hold a parameter."""
NOBODY: Holders = frozenset()
FIRST: Holders = frozenset([0])
"""Parameters that no stage reads are held by the first stage."""


@dataclass(frozen=True)
class StageHolders:
    """The stages that hold a parameter, by its name and by its name and the module that reads it."""

    by_name: Mapping[str, Holders]
    by_reader: Mapping[tuple[str, str], Holders]
    """By (module of the reader, name), which distinguishes the stages of a tied weight."""

    @classmethod
    def of(cls, graph: Graph, cuts: Sequence[str]) -> StageHolders:
        """Return the holders according to the cuts of a model's first graph."""
        names: dict[str, Holders] = {}
        readers: dict[tuple[str, str], Holders] = {}
        for stage, part in enumerate(split(graph, cuts).graphs):
            for node in computing(part):
                for name in _parameters(node, part):
                    key = node.origin.module, name
                    names[name] = names.get(name, NOBODY) | {stage}
                    readers[key] = readers.get(key, NOBODY) | {stage}
        return cls(names, readers)

    def holders(self, node: Node, name: str) -> Holders:
        """Return the stages in which an operator may read a parameter."""
        return self.by_reader.get((node.origin.module, name)) or self.by_name.get(name, FIRST)


def transferred(cuts: Sequence[str], before: Graph, graph: Graph) -> tuple[str, ...]:
    """Return cuts of `graph` that correspond to `cuts` of `before`; each stage reads weights it holds.

    A stage begins with the same operator as before, or with the next one that both graphs have, as
    nearly as the weights allow.  Raises `InputError` if no cuts are possible.
    """
    everywhere = shared(graph)
    operators = [node for node in computing(graph) if node.name not in everywhere]
    held = StageHolders.of(before, cuts)
    bounds = _bounds(len(cuts), operators, graph, held)
    places: list[int] = []
    for number, place in enumerate(_by_name(cuts, before, [node.name for node in operators])):
        first, last = bounds[number]
        first = max(first, places[-1] + 1 if places else 1)
        if first > last:
            raise _misplaced(graph, number, cuts[number])
        places.append(min(max(place, first), last))
    _check(places, operators, graph, held)
    return tuple(operators[place].name for place in places)


def _by_name(cuts: Sequence[str], before: Graph, names: Sequence[str]) -> Iterator[int]:
    """Yield for each cut the index of its operator, or of the next one in both graphs, or the end."""
    order = [node.name for node in computing(before)]
    place = {name: number for number, name in enumerate(names)}
    for cut in cuts:
        following = order[order.index(cut) :]
        yield next((place[name] for name in following if name in place), len(names))


def _bounds(
    cuts: int, operators: Sequence[Node], graph: Graph, held: StageHolders
) -> list[tuple[int, int]]:
    """Return the first and last possible index of each cut, from the weights read before and after it.

    Room is left for later cuts.
    """
    readers = list(_readers(operators, graph, held))
    found: list[tuple[int, int]] = []
    end = len(operators)
    for number in reversed(range(cuts)):
        first = max((place + 1 for place, held_by in readers if max(held_by) <= number), default=1)
        last = min((place for place, held_by in readers if min(held_by) > number), default=end)
        end = min(last, end - 1)
        found.append((first, end))
    return found[::-1]


def _readers(
    operators: Sequence[Node], graph: Graph, held: StageHolders
) -> Iterator[tuple[int, Holders]]:
    """Yield for every parameter that an operator reads: the operator's index, and the holding stages."""
    for place, node in enumerate(operators):
        for name in _parameters(node, graph):
            yield place, held.holders(node, name)


def _parameters(node: Node, graph: Graph) -> Iterator[str]:
    for operand in node.operands:
        leaf = graph.producer[operand]
        if leaf.op == "parameter":
            yield leaf.target


def _check(
    places: Sequence[int], operators: Sequence[Node], graph: Graph, held: StageHolders
) -> None:
    """Raise `InputError` if a stage reads a weight that it does not hold."""
    for place, holders in _readers(operators, graph, held):
        stage = sum(start <= place for start in places)
        if stage not in holders:
            raise _misplaced(graph, stage, operators[place].name)


def _misplaced(graph: Graph, stage: int, where: str) -> InputError:
    return InputError(
        f"{graph.name} runs its operators in another order in this state, or for this batch, "
        f"than for the example inputs: no cut near {where!r} leaves stage {stage} the weights "
        "that it holds. Call autopar.parallelize with example inputs and modes (train, eval) "
        f"that read the same weights in the same order, or with {argument('stages', 1)}."
    )
