"""Memory of a recomputed block's second forward: its peak, and what it leaves for the backward.

It starts when the backward first needs a tensor that the block saved.  It ends with the last operator
that saves anything, or before that operator is executed if it saves operands only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from autopar.ir.blocks import is_hub
from autopar.ir.graph import Node
from autopar.memory.lifetimes import Lifetimes
from autopar.memory.recompute_set import Form


@dataclass(frozen=True, slots=True)
class Rerun:
    """Bytes of a block's second forward on one rank."""

    cached_nbytes: int
    """Bytes cached until it starts, and freed while it runs."""
    most_nbytes: int
    """Peak while it runs, including `cached_nbytes`."""
    kept: Mapping[int, int]
    """Bytes that it leaves, by the position in whose backward they are freed."""


@dataclass(frozen=True, slots=True)
class _Life:
    """First and last position of a lifetime, and the position in whose backward it ends, if saved."""

    first: int
    last: int
    nbytes: int
    goes: int | None = None


def reruns(lives: Lifetimes) -> dict[int, Rerun]:
    """Return the reruns of all recomputed blocks, by the position before whose backward they run."""
    return {places[-1]: _Second(lives, path).run() for path, places in lives.running.items()}


@dataclass(frozen=True)
class _Second:
    """The second forward of a block."""

    lives: Lifetimes
    path: str

    def run(self) -> Rerun:
        """Compute the rerun from the lifetimes of its storages."""
        every = [life for place in self._places for life in self._lives_at(place)]
        every += self._never_read()
        kept = Counter[int]()
        for life in every:
            if life.goes is not None:
                kept[life.goes] += life.nbytes
        cached = sum(self.lives.nbytes(storage) for storage in self._cached)
        cached += sum(map(self._inside, self._places))
        return Rerun(cached, max(self._levels(every)), kept)

    def _levels(self, lives: list[_Life]) -> Iterator[int]:
        """Yield the bytes in use at each position."""
        changes = Counter[int]()
        for life in lives:
            if life.first <= life.last:
                changes[life.first] += life.nbytes
                changes[life.last + 1] -= life.nbytes
        span = range(self._first, self._last + 1)
        for place, level in zip(span, accumulate(changes[at] for at in span), strict=True):
            yield level + self.lives.forward_nbytes(place, again=True)

    def _lives_at(self, place: int) -> Iterator[_Life]:
        """Yield the lifetimes of an operator's outputs and of its internal saved tensors."""
        node = self.lives.graph.nodes[place]
        yield _Life(self._first, place - 1, self._inside(place))
        yield _Life(place, self._last, self.lives.keeps.extra_nbytes(node), place)
        for storage in self.lives.begun.get(place, ()):
            maker = self.lives.graph.producer[storage[0]]
            is_made = storage not in self._shared and storage not in self._reduced
            if is_made and not is_hub(maker, self.lives.graph):
                yield from self._life_of(storage, place, maker)

    def _life_of(self, storage: Form, place: int, maker: Node) -> Iterator[_Life]:
        nbytes = self.lives.nbytes(storage)
        is_cached = storage in self._cached
        if maker is self.lives.graph.nodes[self._last] and not self._finishes:
            if is_cached:  # never read: it is freed with the block
                yield _Life(self._first, self._last, nbytes, self.lives.saving[self.path][0])
            return
        first, goes = self._first if is_cached else place, self._saver.get(storage)
        last = self._last if goes is not None else min(self.lives.until(storage), self._last)
        yield _Life(first, last, nbytes, goes)

    def _never_read(self) -> Iterator[_Life]:
        """Yield cached reductions behind the last operator that runs again: they go with the block."""
        again = {storage for place in self._places for storage in self.lives.begun.get(place, ())}
        for storage in self._cached - again:
            goes = self.lives.saving[self.path][0]
            yield _Life(self._first, self._last, self.lives.nbytes(storage), goes)

    @cached_property
    def _saver(self) -> Mapping[Form, int]:
        """The first operator of the block that saves each storage."""
        found: dict[Form, int] = {}
        for place in self.lives.saving[self.path]:
            for storage in self.lives.keeps.saved_by([self.lives.graph.nodes[place]]):
                found.setdefault(storage, place)
        return found

    @cached_property
    def _shared(self) -> frozenset[Form]:
        """Cached results that are referenced elsewhere too: the block allocates nothing for them."""
        forms = self.lives.keeps.again.results.get(self.path, frozenset())
        return frozenset(self.lives.keeps.storage[form] for form in forms) - self._cached

    @cached_property
    def _reduced(self) -> frozenset[Form]:
        """Partial sums that the second run does not compute: their reductions are cached."""
        keeps = self.lives.keeps
        return frozenset(keeps.storage[form] for form in keeps.again.reduced)

    @property
    def _cached(self) -> frozenset[Form]:
        return self.lives.cached.get(self.path, frozenset())

    def _inside(self, place: int) -> int:
        """Return the bytes that an operator of a selective block caches besides its results."""
        if self.path not in self.lives.cached:
            return 0
        return self.lives.keeps.cached_nbytes(self.lives.graph.nodes[place])

    @property
    def _finishes(self) -> bool:
        """Whether the last operator is executed: it saves more than operands."""
        saved = self.lives.keeps.saved[self.lives.graph.nodes[self._last].name]
        return bool(saved.outputs or saved.extra_nbytes)

    @property
    def _places(self) -> list[int]:
        return self.lives.running[self.path]

    @property
    def _first(self) -> int:
        return self._places[0]

    @property
    def _last(self) -> int:
        return self._places[-1]
