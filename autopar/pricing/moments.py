"""Bytes in use while each operator runs, forward and backward, besides what rests: memory over the step.

A storage is in use from the operator that makes it until its variable is deleted or gone (`Lives`);
where something saves it, to the backward of the first operator that does.  A gradient is in use from
the backward of the last reader to that of the maker.  What a recomputed block makes again is there
from the beginning of its backward, and goes like all else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from autopar.graph import Graph, Node, Saved
from autopar.mesh import Mesh
from autopar.plans.plan import OpSharding
from autopar.pricing.keeps import Keeps
from autopar.pricing.lives import Lives
from autopar.pricing.operators import split
from autopar.pricing.recomputed import Form

Life = tuple[int, int, int]
"""First and last place, and bytes."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes in use while an operator's forward and its backward run."""

    forward_nbytes: int
    backward_nbytes: int


@dataclass(frozen=True)
class Moments:
    """The lives of all storages, counted in places of operators."""

    keeps: Keeps

    @cached_property
    def lives(self) -> Lives:
        """Of the storages in the forward."""
        return Lives(self.keeps)

    @property
    def most_nbytes(self) -> int:
        """The highest point of both passes."""
        return max((level for levels in self._levels for level in levels), default=0)

    def by_node(self) -> dict[str, Moment]:
        """Of every operator, in order."""
        forward, backward = self._levels
        return {
            node.name: Moment(forward[place], backward[place])
            for place, node in enumerate(self._graph.nodes)
            if not node.is_leaf
        }

    @cached_property
    def _levels(self) -> tuple[list[int], list[int]]:
        """Of all places, from where each life begins and ends."""
        held, gradients = self._summed(self._held_lives()), self._summed(self._gradient_lives())
        within = [*(self.lives.within(place) for place in range(self._end + 1)), Saved()]
        backward = [
            kept + moving + more.backward_nbytes
            for kept, moving, more in zip(held, gradients, within, strict=True)
        ]
        for place, nbytes in self._recomputations():
            backward[place] = max(backward[place], held[place] + nbytes)
        forward = self._summed(self._forward_lives())
        return [
            level + more.forward_nbytes for level, more in zip(forward, within, strict=True)
        ], backward

    def _summed(self, lives: Iterable[Life]) -> list[int]:
        changes = [0] * (self._end + 2)
        for first, last, nbytes in lives:
            changes[first] += nbytes
            changes[last + 1] -= nbytes
        return list(accumulate(changes))

    def _forward_lives(self) -> Iterator[Life]:
        for storage, (first, _) in self.lives.used.items():
            held = storage in self.lives.saver and storage not in self._regathered
            yield first, self._end if held else self.lives.until(storage), self._nbytes(storage)
        yield from self._extras()

    def _held_lives(self) -> Iterator[Life]:
        """The backward comes back through the places: what is saved first is let go last."""
        for storage, (first, last) in self.lives.used.items():
            if storage in self._regathered:
                yield first, last, self._nbytes(storage)
            elif storage in self.lives.saver:
                yield self.lives.saver[storage], self._end, self._nbytes(storage)
        yield from self._extras()
        for places in self._blocks.values():
            yield from self._made_again(places)

    def _made_again(self, places: list[int]) -> Iterator[Life]:
        """What a block's second forward saves: let go like all else, what is saved first at last."""
        kept = set(self.keeps.saved_storages) | self._regathered | self.lives.resting
        for place in places:
            node = self._graph.nodes[place]
            for storage in self.keeps.saved_by([node]) - kept:
                kept.add(storage)
                yield place, places[-1], self._nbytes(storage)
            if node.name in self.keeps.again.computed:
                yield place, places[-1], self._extra_nbytes(node)

    def _gradient_lives(self) -> Iterator[Life]:
        """Of what is made, from its last reader back to its maker; of a weight, at each reader."""
        for storage, life in self.lives.used.items():
            if self._graph.tensors[storage[0]].differentiable:
                yield *life, self._nbytes(storage)
        for place, node in enumerate(self._graph.nodes):
            for form in zip(node.operands, self._shardings[node.name].inputs, strict=True):
                is_trained = self._graph.tensors[form[0]].differentiable
                if is_trained and self.keeps.storage[form] in self.lives.resting:
                    yield place, place, self._nbytes(form)

    def _recomputations(self) -> Iterator[tuple[int, int]]:
        """Where a block's backward begins: what its forward has in use that is not kept after it."""
        made_again = self.keeps.recomputed_nbytes()
        for path, places in self._blocks.items():
            last = (
                self._graph.nodes[places[-1]].outputs[0].name,
                self._shardings[self._graph.nodes[places[-1]].name].outputs[0],
            )
            more = max(0, max(self._running_again(places)) - made_again[path])
            yield places[-1], more + self._nbytes(last)

    def _running_again(self, places: list[int]) -> list[int]:
        """Bytes that a block's second forward has in use at each of its places, but what was held."""
        within, nodes = set(places), [self._graph.nodes[place] for place in places]
        kept = self.keeps.saved_by(nodes)
        lives = [
            (first, places[-1] if storage in kept else self.lives.until(storage), storage)
            for storage, (first, _) in self.lives.used.items()
            if first in within and storage not in self.lives.saver
        ]
        return self._summed((a, min(b, places[-1]), self._nbytes(s)) for a, b, s in lives)

    @cached_property
    def _blocks(self) -> Mapping[str, list[int]]:
        """The places that run again, by block."""
        place_of = {node.name: place for place, node in enumerate(self._graph.nodes)}
        every = self.keeps.again.nodes.items()
        return {path: sorted(place_of[n.name] for n in nodes) for path, nodes in every if nodes}

    def _extras(self) -> Iterator[Life]:
        """What operators save that is none of their operands and outputs."""
        for place, node in enumerate(self._graph.nodes):
            if node.name in self._saved and node.name not in self.keeps.again.computed:
                yield place, self._end, self._extra_nbytes(node)

    def _extra_nbytes(self, node: Node) -> int:
        ways = split(self._shardings[node.name], self._mesh)
        return self._saved.get(node.name, Saved()).extra_nbytes // ways

    @cached_property
    def _regathered(self) -> frozenset[Form]:
        return frozenset((c.tensor, c.target) for c in self.keeps.conversions if c.regather)

    def _nbytes(self, storage: Form) -> int:
        return self.lives.nbytes(storage)

    @property
    def _end(self) -> int:
        """The last place."""
        return len(self._graph.nodes) - 1

    @property
    def _graph(self) -> Graph:
        return self.keeps.graph

    @property
    def _mesh(self) -> Mesh:
        return self.keeps.mesh

    @property
    def _shardings(self) -> Mapping[str, OpSharding]:
        return self.keeps.shardings

    @property
    def _saved(self) -> Mapping[str, Saved]:
        return self.keeps.saved
