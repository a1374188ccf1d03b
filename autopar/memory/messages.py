"""What is converted in one collective, and the memory that its messages take beside what is made.

Where the dim that is split leads, parts are gathered into the tensor that they make, and scattered from
the one that is summed; elsewhere there is one more.  What is exchanged is copied into parts that are
sent, unless the dim that is cut leads, and arrives in others.  Gradients of a block are copied into one
message, unless that is larger than a bucket.  What does not lie in row-major order is copied before it
is sent, or cut.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from autopar.ir.graph import ITEMSIZE
from autopar.ir.placement import I, P, R, S, Sharding
from autopar.memory.saved_tensors import SavedTensors, moves_nothing
from autopar.memory.shards import local_nbytes
from autopar.plans.buckets import NBYTES
from autopar.plans.decisions import Conversion, reduction_dtype
from autopar.plans.grouping import groups, is_gather


@dataclass(frozen=True)
class Carried:
    """Conversions that one collective carries: several weights', or a single one."""

    conversions: tuple[Conversion, ...]
    forward_nbytes: int
    """Of messages in the forward, or where it is gathered again."""
    backward_nbytes: int
    """Of messages in the backward."""


def collectives(keeps: SavedTensors) -> Iterator[Carried]:
    """All of them; those of several weights first."""
    graph, conversions = keeps.graph, keeps.conversions
    messages = _Messages(keeps)
    steps: defaultdict[str, list[Conversion]] = defaultdict(list)
    for conversion in conversions:
        steps[conversion.tensor].append(conversion)
    seen: set[Conversion] = set()
    for group in groups(graph, conversions, keeps.mesh, keeps.precision):
        together = tuple(steps[member.tensor][group.hop] for member in group.members)
        seen.update(together)
        yield messages.of(together)
    for conversion in conversions:
        if conversion not in seen:
            yield messages.of((conversion,))


def made_by(conversion: Conversion) -> tuple[str, Sharding]:
    """The form that it makes."""
    return conversion.tensor, conversion.target


@dataclass(frozen=True)
class _Messages:
    keeps: SavedTensors

    def of(self, conversions: tuple[Conversion, ...]) -> Carried:
        """Bytes of one rank."""
        first = conversions[0]
        turned = sum(self._nbytes(c, c.source) for c in conversions if self._is_turned(c))
        if not is_gather(first.source[first.axis], first.target[first.axis]):
            forward, backward = self._of_other(first)
            return Carried(conversions, turned + forward, backward)
        apart = sum(self._nbytes(c, c.target) for c in conversions if not self._leads(c))
        reduced = [c for c in conversions if c.target[c.axis] is R]
        copied = sum(map(self._reduced_nbytes, reduced))
        if len(reduced) == 1 or copied > NBYTES:
            copied = sum(self._reduced_nbytes(c) for c in reduced if not self._is_ready(c))
        return Carried(conversions, turned + apart, copied)

    def _is_turned(self, c: Conversion) -> bool:
        return (c.tensor, c.source) in self.keeps.turned and not moves_nothing(c)

    def _of_other(self, c: Conversion) -> tuple[int, int]:
        """Forward and backward of what does not gather: an exchange, or what is scattered."""
        source, target = c.source[c.axis], c.target[c.axis]
        if not isinstance(target, S):
            return 0, 0
        if isinstance(source, S):
            nbytes = self._nbytes(c, c.target)
            there, back = (
                self._cuts_copies(c.source, c.target, c),
                self._cuts_copies(c.target, c.source, c),
            )
            return nbytes * (1 + there), nbytes * (1 + back)
        whole = 0 if self._leads(c) else self._nbytes(c, c.source)
        return (whole if source is P else 0), (whole if source in (P, I) else 0)

    def _cuts_copies(self, form: Sharding, to: Sharding, c: Conversion) -> bool:
        """Whether what is sent of a form is copied: parts of its leading dim are there as they are."""
        shard = to.local(c.axis, self.keeps.mesh)
        assert isinstance(shard, S)
        shape = form.local_shape(self.keeps.graph.tensors[c.tensor].shape, self.keeps.mesh)
        return math.prod(shape[: shard.dim]) * shard.of > 1

    def _leads(self, c: Conversion) -> bool:
        """Whether parts, rank by rank, are the whole that they make."""
        part, whole = c.source.local(c.axis, self.keeps.mesh), c.target
        if not isinstance(part, S):
            part, whole = c.target.local(c.axis, self.keeps.mesh), c.source
        assert isinstance(part, S)
        shape = whole.local_shape(self.keeps.graph.tensors[c.tensor].shape, self.keeps.mesh)
        return math.prod(shape[: part.dim]) * part.of == 1

    def _is_ready(self, c: Conversion) -> bool:
        """Whether its gradient can be summed where it is."""
        return self._leads(c) and self._reduction(c) is None

    def _nbytes(self, c: Conversion, form: Sharding) -> int:
        return local_nbytes(self.keeps.graph.tensors[c.tensor], form, self.keeps.mesh)

    def _reduced_nbytes(self, c: Conversion) -> int:
        """In the dtype in which gradients are summed."""
        reduction, tensor = self._reduction(c), self.keeps.graph.tensors[c.tensor]
        wide = tensor.itemsize if reduction is None else ITEMSIZE[reduction]
        return self._nbytes(c, c.target) // tensor.itemsize * wide

    def _reduction(self, c: Conversion) -> str | None:
        return reduction_dtype(c.tensor, self.keeps.graph, self.keeps.precision)
