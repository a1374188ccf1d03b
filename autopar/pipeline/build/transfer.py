"""The cuts of one graph of a model in another of its graphs: of evaluation, or of other shapes.

Weights rest with the stages that read them first.  The graph of another state has other operators (batch
norm is one there, dropout is none), so names alone do not say where it may be cut: every stage has to
read what it holds.
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
"""What no stage reads rests with the first."""


@dataclass(frozen=True)
class StageHolders:
    """Which stages hold a parameter, of all that read it and of those where one module does."""

    by_name: Mapping[str, Holders]
    by_reader: Mapping[tuple[str, str], Holders]
    """By module of the reader and name: tells the stages of a tied weight apart."""

    @classmethod
    def of(cls, graph: Graph, cuts: Sequence[str]) -> StageHolders:
        """As the first graph of a model is cut."""
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
        """The stages in which an operator may read a parameter."""
        return self.by_reader.get((node.origin.module, name)) or self.by_name.get(name, FIRST)


def transferred(cuts: Sequence[str], before: Graph, graph: Graph) -> tuple[str, ...]:
    """The cuts of `before` in `graph`, so that each stage reads weights that it holds.

    A stage begins with the operator that it began with, or the next that both graphs have, as nearly
    as weights allow.  Raises `InputError` where no cuts do.
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
    """Where the operators stand that stages began with; the end, where nothing follows."""
    order = [node.name for node in computing(before)]
    place = {name: number for number, name in enumerate(names)}
    for cut in cuts:
        following = order[order.index(cut) :]
        yield next((place[name] for name in following if name in place), len(names))


def _bounds(
    cuts: int, operators: Sequence[Node], graph: Graph, held: StageHolders
) -> list[tuple[int, int]]:
    """Between which places each cut lies, by what is read before and behind; later ones have room."""
    readers = list(_readers(operators, graph, held))
    found: list[tuple[int, int]] = []
    end = len(operators)
    for number in reversed(range(cuts)):
        first = max((place + 1 for place, held_by in readers if max(held_by) <= number), default=1)
        last = min((place for place, held_by in readers if min(held_by) > number), default=end)
        end = min(last, end - 1)
        found.append((first, end))
    return found[::-1]


def _readers(operators: Sequence[Node], graph: Graph, held: StageHolders) -> Iterator[tuple[int, Holders]]:
    """Of every parameter that an operator reads: the operator's place, and who holds it."""
    for place, node in enumerate(operators):
        for name in _parameters(node, graph):
            yield place, held.holders(node, name)


def _parameters(node: Node, graph: Graph) -> Iterator[str]:
    for operand in node.operands:
        leaf = graph.producer[operand]
        if leaf.op == "parameter":
            yield leaf.target


def _check(places: Sequence[int], operators: Sequence[Node], graph: Graph, held: StageHolders) -> None:
    """Weights that several stages hold are read by one of these."""
    for place, holders in _readers(operators, graph, held):
        stage = sum(start <= place for start in places)
        if stage not in holders:
            raise _misplaced(graph, stage, operators[place].name)


def _misplaced(graph: Graph, stage: int, where: str) -> InputError:
    return InputError(
        f"{graph.name} computes in another order in this state, or for this batch, than for the "
        f"example inputs: no cut near {where!r} leaves stage {stage} the weights that it holds. Call "
        "autopar.parallelize with example inputs and modes (train, eval) that read the same weights "
        f"in the same order, or with {argument('stages', 1)}."
    )
