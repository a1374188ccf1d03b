"""Memory over the step: bytes in use while each operator runs, without what is allocated throughout.

In the forward a storage is in use from the operator that creates it until its variable is deleted or
goes out of scope (`Lifetimes`), or to the end if it is saved.  The backward is simulated (`backward`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from autopar.memory.backward import Back, back
from autopar.memory.filling import GradientBucket
from autopar.memory.lifetimes import Lifetimes
from autopar.memory.recompute_set import Form
from autopar.memory.saved_tensors import SavedTensors


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes in use while an operator's forward and its backward run."""

    forward_nbytes: int
    backward_nbytes: int


@dataclass(frozen=True)
class MemoryTimeline:
    """Memory in use over one step, indexed by the positions of operators."""

    keeps: SavedTensors
    fresh: Mapping[Form, int] = field(default_factory=dict)
    """Bytes of the parameter gradients that the backward allocates anew, by leaf."""
    buckets: tuple[GradientBucket, ...] = ()
    """The gradient buckets in the order of their reductions, if buffers are freed in the backward."""

    @cached_property
    def lives(self) -> Lifetimes:
        """Lifetimes of the storages in the forward."""
        return Lifetimes(self.keeps)

    @property
    def most_nbytes(self) -> int:
        """Peak memory over both passes, in bytes."""
        return max((0, *self._forward, *self._back.levels))

    @property
    def absent_nbytes(self) -> int:
        """The bytes by which the peak is lower if these gradients are freed between steps."""
        awaited = sum(self.fresh.values()) + sum(bucket.kept_nbytes for bucket in self.buckets)
        forward = (level - awaited for level in self._forward)
        each = zip(self._back.levels, self._back.settled, strict=True)
        return self.most_nbytes - max((0, *forward, *(b + s - awaited for b, s in each)))

    def by_node(self) -> dict[str, Moment]:
        """Return the bytes in use at every operator, in graph order."""
        return {
            node.name: Moment(self._forward[place], self._back.levels[place])
            for place, node in enumerate(self.keeps.graph.nodes)
            if not node.is_leaf
        }

    @cached_property
    def _forward(self) -> list[int]:
        """Bytes in use at each position of the forward."""
        changes = [0] * (self.lives.end + 2)
        for first, last, nbytes in self._in_forward():
            changes[first] += nbytes
            changes[last + 1] -= nbytes
        return [
            level + self.lives.forward_nbytes(place)
            for place, level in enumerate(accumulate(changes[:-1]))
        ]

    @cached_property
    def _back(self) -> Back:
        return back(self.lives, self.fresh, self.buckets)

    def _in_forward(self) -> Iterator[tuple[int, int, int]]:
        """Yield the first position, last position and bytes of each forward lifetime."""
        lives, again, end = self.lives, self.keeps.again, self.lives.end
        held = lives.saver.keys() - lives.regathered
        held |= {storage for storages in lives.cached.values() for storage in storages}
        for storage, (first, _) in lives.used.items():
            since = 0 if storage in lives.staying else lives.issued.get(storage, first)
            until = end if storage in held else lives.until(storage)
            yield since, until, lives.nbytes(storage)
        caching = {node.name for node in again.caching}
        for place, node in enumerate(self.keeps.graph.nodes):
            made = kept = self.keeps.extra_nbytes(node)
            if node.name in again.node_names:
                kept = self.keeps.cached_nbytes(node) if node.name in caching else 0
            yield place, end, kept
            yield place, place, max(0, made - kept)
