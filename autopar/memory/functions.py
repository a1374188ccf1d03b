"""Predicts the functions of an emitted module: its forward, and those of its blocks' classes.

Variables of emitted code live until their function returns, so that lifetimes depend on these.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from autopar.ir.blocks import FEWEST, block_of, is_hub, runs
from autopar.ir.graph import Graph, Node
from autopar.ops.operators import bind
from autopar.plans.decisions import Conversion, OpSharding


@dataclass(frozen=True)
class Functions:
    """The functions, numbered from 1 in execution order; 0 is the module's forward, with all leaves.

    Positions are indices into the graph's nodes.  `converted` are the conversions, each with the
    position of its first reader.
    """

    graph: Graph
    shardings: Mapping[str, OpSharding]
    converted: tuple[tuple[int, Conversion], ...]

    @cached_property
    def of(self) -> list[int]:
        """For every position, the function that contains its statement."""
        nodes, pieces = self.graph.nodes, runs(self.graph)
        alike = Counter(where[0] for where, _ in pieces if where is not None)
        looks = Counter(self._looks(places) for _, places in pieces)
        found = [0] * len(nodes)
        for number, (where, places) in enumerate(pieces, start=1):
            made = sum(len(nodes[place].outputs) + len(self._steps[place]) for place in places)
            is_trifle = made < FEWEST and looks[self._looks(places)] == 1
            for place in places if where and alike[where[0]] > 1 and not is_trifle else ():
                found[place] = number
        return found

    @cached_property
    def ends(self) -> Mapping[int, int]:
        """The last position of each function."""
        found = {function: place for place, function in enumerate(self.of)}
        return found | {0: len(self.of) - 1}

    @cached_property
    def begins(self) -> Mapping[int, int]:
        """The first position of each function."""
        return {function: places[0] for function, places in self.places.items() if places}

    @cached_property
    def line_ends(self) -> list[int]:
        """For every position, the last one that stems from the same line of the user's code."""
        found = list(range(len(self.graph.nodes)))

        def line(place: int) -> object:
            origin = self.graph.nodes[place].origin
            return self.of[place], origin.file, origin.line, origin.code

        said = [place for _, places in runs(self.graph) for place in places]
        for _, run in itertools.groupby(said, key=line):
            places = list(run)
            for place in places:
                found[place] = places[-1]
        return found

    @cached_property
    def hubs(self) -> frozenset[str]:
        """Tensors produced outside all blocks and read inside blocks."""
        return frozenset(
            tensor.name
            for node in self.graph.nodes
            if is_hub(node, self.graph)
            for tensor in node.outputs
        )

    def loop(self, block: int, following: int) -> bool:
        """Return whether two functions are iterations of a loop: equal blocks in succession."""
        if not block or following != block + 1:
            return False
        return self._looks(self.places[block]) == self._looks(self.places[following])

    @cached_property
    def places(self) -> Mapping[int, list[int]]:
        """The positions of each function's statements."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for place, function in enumerate(self.of):
            found[function].append(place)
        return found

    def _looks(self, places: list[int]) -> tuple[object, ...]:
        """Return a key of the emitted code of some positions; pieces with equal keys share a class."""
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
        """Return the local name of a weight of the node's block; other names make no difference."""
        maker, block = self.graph.producer[operand], block_of(node.origin)
        home = f"{block[0]}.{block[1]}." if block else ""
        is_own = maker.op == "parameter" and maker.target.startswith(home)
        return maker.target.removeprefix(home) if is_own else "tensor"

    @cached_property
    def _steps(self) -> Mapping[int, list[tuple[object, ...]]]:
        """The conversions at each position, except those of hubs, which stand outside of blocks."""
        found: defaultdict[int, list[tuple[object, ...]]] = defaultdict(list)
        for place, c in self.converted:
            if c.tensor not in self.hubs:
                shape = self.graph.tensors[c.tensor].shape
                found[place].append((shape, c.source, c.target, c.regather))
        return found
