"""Finds repeated blocks by structure, such as a transformer's layers, whatever their modules are called.

A `Repeat` states that the nodes [start, start + period * count) are `count` copies of one block.
The copies have the same operators, literals and shapes, and the same references inside the block.
What a block reads from outside is one tensor for all copies (a mask, a shared weight), or a leaf of
its own (a weight), or made by the previous copy at the same position. The first copy may read
anything of the same shape there. A block is one connected computation with a weight, and each copy
reads the previous one: q, k and v in parallel are not a repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autopar.ir.graph import Arg, Graph, Node, Ref

Ids = npt.NDArray[np.int64]
Place = tuple[int, int]
"""Index of the node that makes a tensor, and the position among its outputs."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """`count` copies of a block of `period` nodes, from index `start` of the graph's nodes."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        """Index after the last copy."""
        return self.start + self.period * self.count

    def block(self, copy: int) -> range:
        """Return the indices of one copy."""
        first = self.start + copy * self.period
        return range(first, first + self.period)


def repeats(graph: Graph) -> tuple[Repeat, ...]:
    """Return disjoint repeats in order; the largest is found first, then those before and after it."""
    search = _Search(graph)
    return tuple(sorted(search.within(0, len(graph.nodes)), key=lambda repeat: repeat.start))


class _Search:
    """The nodes of a graph with references as indices, and a number for each distinct signature."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes
        place = {t.name: (i, k) for i, n in enumerate(graph.nodes) for k, t in enumerate(n.outputs)}
        self.reads = [tuple(place[name] for name in node.operands) for node in graph.nodes]
        numbers: dict[str, int] = {}
        signatures = [_signature(node, graph) for node in graph.nodes]
        self.ids: Ids = np.array([numbers.setdefault(text, len(numbers)) for text in signatures])
        self.last_read = list(range(len(self.nodes)))
        for index, reads in enumerate(self.reads):
            for source, _ in reads:
                self.last_read[source] = index

    def within(self, low: int, high: int) -> list[Repeat]:
        """Return the repeats inside [low, high)."""
        best = self._best(low, high)
        if best is None:
            return []
        return [*self.within(low, best.start), best, *self.within(best.stop, high)]

    def _best(self, low: int, high: int) -> Repeat | None:
        """Return the repeat that covers most nodes; among equals, the one with the shortest period."""
        bounds = sorted(self._runs(low, high), key=lambda run: (-run[0], run[1]))
        best: Repeat | None = None
        for cover, period, first, stop in bounds:
            if best is not None and cover <= best.period * best.count:
                break
            found = self._aligned(period, first, stop)
            if found and (best is None or found.period * found.count > best.period * best.count):
                best = found
        return best

    def _runs(self, low: int, high: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (cover, period, first, stop) of ranges whose nodes match those a period later.

        `cover` is the maximum number of nodes that a repeat there can cover.
        """
        ids = self.ids[low:high]
        for period in range(1, len(ids) // 2 + 1):
            same = np.concatenate(([False], ids[:-period] == ids[period:], [False])).astype(np.int8)
            edges = np.diff(same)
            starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
            for first, end in zip(starts, ends, strict=True):
                if end - first >= period:
                    cover = (int(end - first) // period + 1) * period
                    yield cover, period, low + int(first), low + int(end) + period

    def _aligned(self, period: int, first: int, stop: int) -> Repeat | None:
        """Return the repeat with the best border between copies.

        It has the most copies; among equals, the fewest tensors cross the border.
        """
        choices: list[tuple[int, int, int]] = []
        for start in range(first, min(first + period, stop - 2 * period + 1)):
            count = (stop - start) // period
            choices.append((-count, self._crossing(first, start + period), start))
        for negative, _, start in sorted(choices):
            repeat = Repeat(start, period, -negative)
            if self._holds(repeat):
                return repeat
        return None

    def _crossing(self, first: int, border: int) -> int:
        """Return how many tensors made since `first` are read after a border."""
        return sum(self.last_read[i] >= border for i in range(first, border))

    def _holds(self, repeat: Repeat) -> bool:
        """Return whether every copy reads what the module docstring allows."""
        block = repeat.block(0)
        if not any(self.nodes[s].op == "parameter" for i in block for s, _ in self.reads[i]):
            return False
        carried: dict[Place, Place] = {}
        if not self._connected(block):
            return False
        alike = all(self._alike(repeat, copy, carried) for copy in range(1, repeat.count))
        return alike and bool(carried)

    def _connected(self, block: range) -> bool:
        """Return whether the block is one connected computation, not parts of two parallel ones."""
        group = {index: index for index in block}

        def root(index: int) -> int:
            while group[index] != index:
                group[index] = index = group[group[index]]
            return index

        for index in block:
            for source, _ in self.reads[index]:
                if source in block:
                    group[root(index)] = root(source)
        return len({root(index) for index in block}) == 1

    def _alike(self, repeat: Repeat, copy: int, carried: dict[Place, Place]) -> bool:
        """Return whether a copy reads as the first two do, place by place."""
        block, shift = repeat.block(0), copy * repeat.period
        leaves: dict[int, int] = {}
        for index in block:
            reads = (self.reads[i] for i in (index, index + repeat.period, index + shift))
            for zeroth, first, here in zip(*reads, strict=True):
                if zeroth[0] in block:
                    same = here == _later(zeroth, shift)
                elif self.nodes[zeroth[0]].is_leaf and self.nodes[first[0]].is_leaf:
                    own = leaves.setdefault(zeroth[0], here[0])
                    same = self.nodes[here[0]].is_leaf and own == here[0]
                elif first == zeroth:  # one tensor for all copies
                    same = here == zeroth
                else:  # made by the previous copy; the first copy reads another tensor instead
                    made_before = first[0] in block and here == _later(first, shift - repeat.period)
                    same = made_before and carried.setdefault(first, zeroth) == zeroth
                if not same:
                    return False
        return True


def _later(place: Place, shift: int) -> Place:
    return place[0] + shift, place[1]


def _signature(node: Node, graph: Graph) -> str:
    """Return everything of a node except names: equal for equal operators, literals and shapes."""
    if node.is_leaf:
        return f"leaf {node.name}"
    arguments = _shown(node.args, graph), _shown(tuple(value for _, value in node.kwargs), graph)
    outputs = [(t.shape, t.dtype, t.differentiable) for t in node.outputs]
    return f"{node.op}{arguments}{[key for key, _ in node.kwargs]}{outputs}"


def _shown(arg: Arg, graph: Graph) -> str:
    if isinstance(arg, Ref):
        tensor = graph.tensors[arg.name]
        return f"<{tensor.shape}{tensor.dtype}{tensor.differentiable}>"
    if isinstance(arg, tuple):
        return f"({','.join(_shown(item, graph) for item in arg)})"
    return repr(arg)
