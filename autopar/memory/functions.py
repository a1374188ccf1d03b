"""The functions of an emitted module: the forward's, and those of its blocks' classes."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from autopar.ir.blocks import FEWEST, block_of, is_hub
from autopar.ir.graph import Graph, Node
from autopar.ops.operators import bind
from autopar.plans.decisions import Conversion, OpSharding


@dataclass(frozen=True)
class Functions:
    """Numbered in their order, from 1; 0 is the module's own forward, which leaves are in.

    Places are those of the graph's nodes; `converted`: conversions, each at its first reader's place.
    """

    graph: Graph
    shardings: Mapping[str, OpSharding]
    converted: tuple[tuple[int, Conversion], ...]

    @cached_property
    def of(self) -> list[int]:
        """Of every place: which function its statement is in."""
        computing = [(place, node) for place, node in enumerate(self.graph.nodes) if _is_said(node)]
        pieces = [
            (where, [place for place, _ in run])
            for where, run in itertools.groupby(
                computing, key=lambda pair: block_of(pair[1].origin)
            )
        ]
        alike = Counter(where[0] for where, _ in pieces if where is not None)
        looks = Counter(self._looks(places) for _, places in pieces)
        found = [0] * len(self.graph.nodes)
        for number, (where, places) in enumerate(pieces, start=1):
            statements = sum(1 + len(self._steps[place]) for place in places)
            is_trifle = statements < FEWEST and looks[self._looks(places)] == 1
            for place in places if where and alike[where[0]] > 1 and not is_trifle else ():
                found[place] = number
        return found

    @cached_property
    def ends(self) -> Mapping[int, int]:
        """The last place of each."""
        found = {function: place for place, function in enumerate(self.of)}
        return found | {0: len(self.of) - 1}

    @cached_property
    def line_ends(self) -> list[int]:
        """Of every place: the last one of the statements below the same line of the user's."""
        found = list(range(len(self.graph.nodes)))

        def line(place: int) -> object:
            origin = self.graph.nodes[place].origin
            return self.of[place], origin.file, origin.line, origin.code

        said = [place for place, node in enumerate(self.graph.nodes) if _is_said(node)]
        for _, run in itertools.groupby(said, key=line):
            places = list(run)
            for place in places:
                found[place] = places[-1]
        return found

    @cached_property
    def hubs(self) -> frozenset[str]:
        """Tensors that are made outside all blocks and read inside."""
        return frozenset(
            tensor.name
            for node in self.graph.nodes
            if is_hub(node, self.graph)
            for tensor in node.outputs
        )

    def loop(self, block: int, following: int) -> bool:
        """Whether two are turns of a loop: equal blocks with nothing said between them."""
        if not block or following != block + 1:
            return False
        return self._looks(self._places[block]) == self._looks(self._places[following])

    @cached_property
    def _places(self) -> Mapping[int, list[int]]:
        """Of each the places of its statements."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for place, function in enumerate(self.of):
            found[function].append(place)
        return found

    def _looks(self, places: list[int]) -> tuple[object, ...]:
        """What pieces must have in common to share a class: all that is written of them."""
        return tuple(
            (
                node.op,
                repr(bind(node.args, partial(self._called, node))),
                repr(
                    [(key, bind(value, partial(self._called, node))) for key, value in node.kwargs]
                ),
                tuple(tensor.shape for tensor in node.outputs),
                self.shardings[node.name].outputs,
                tuple(self._steps[place]),
            )
            for place, node in ((place, self.graph.nodes[place]) for place in places)
        )

    def _called(self, node: Node, operand: str) -> str:
        """A weight of the block's own by its name there; anything else may be called as it likes."""
        maker, block = self.graph.producer[operand], block_of(node.origin)
        home = f"{block[0]}.{block[1]}." if block else ""
        is_own = maker.op == "parameter" and maker.target.startswith(home)
        return maker.target.removeprefix(home) if is_own else "tensor"

    @cached_property
    def _steps(self) -> Mapping[int, list[tuple[object, ...]]]:
        """By place, what is converted there; what is made outside all blocks is converted outside."""
        found: defaultdict[int, list[tuple[object, ...]]] = defaultdict(list)
        for place, c in self.converted:
            if c.tensor not in self.hubs:
                shape = self.graph.tensors[c.tensor].shape
                found[place].append((shape, c.source, c.target, c.regather))
        return found


def _is_said(node: Node) -> bool:
    """Whether a statement is written for it."""
    return node.op not in ("parameter", "buffer", "input", "received")
