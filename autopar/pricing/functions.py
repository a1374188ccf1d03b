"""The functions of an emitted module: the forward's, and those of its blocks' classes."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from autopar.blocks import FEWEST, block_of, is_hub
from autopar.graph import Graph, Node
from autopar.operators import bind
from autopar.placement import Sharding
from autopar.plans.plan import Conversion, OpSharding


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
            is_trifle = len(places) < FEWEST and looks[self._looks(places)] == 1
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
        if self._steps[block] != self._steps[following]:
            return False
        return self._looks(self._places[block]) == self._looks(self._places[following])

    @cached_property
    def _steps(self) -> Mapping[int, list[tuple[Sharding, Sharding]]]:
        """What each converts; what is made outside all blocks is converted there."""
        found: defaultdict[int, list[tuple[Sharding, Sharding]]] = defaultdict(list)
        for place, c in self.converted:
            if c.tensor not in self.hubs:
                found[self.of[place]].append((c.source, c.target))
        return found

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
                repr(bind(node.args, _unnamed)),
                repr([(key, bind(value, _unnamed)) for key, value in node.kwargs]),
                tuple(tensor.shape for tensor in node.outputs),
                self.shardings[node.name].outputs,
            )
            for node in (self.graph.nodes[place] for place in places)
        )


def _unnamed(_: str) -> str:
    return "tensor"


def _is_said(node: Node) -> bool:
    """Whether a statement is written for it."""
    return node.op not in ("parameter", "buffer", "input", "received")
