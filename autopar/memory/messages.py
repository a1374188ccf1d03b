"""Groups conversions into collectives, and computes the memory of their message buffers.

A gather or scatter along the leading dim works directly on the tensors; along other dims it needs one
buffer.  An all-to-all sends from a buffer unless its result is split along the leading dim, and receives
into one unless its operand is.  The gradients of a block are copied into one message, unless it is
larger than a bucket.  Gradients that are reduced in another dtype are cast before they are copied, and
their sums are cast back.  Tensors that are not in row-major order are copied before they are sent.  An
added collective needs a buffer of the largest message that it sends.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autopar.ir.conversion import Direction
from autopar.ir.graph import ITEMSIZE
from autopar.ir.placement import I, P, R, S, Sharding
from autopar.memory.saved_tensors import SavedTensors
from autopar.memory.shards import local_nbytes
from autopar.plans.buckets import NBYTES
from autopar.plans.decisions import Conversion, reduction_dtype
from autopar.plans.grouping import groups, is_gather


@dataclass(frozen=True)
class Carried:
    """The conversions of one collective: those of several weights, or a single one."""

    conversions: tuple[Conversion, ...]
    forward_nbytes: int
    """Bytes of message buffers in the forward, and where it is gathered again."""
    backward_nbytes: int
    """Bytes of message buffers in the backward."""
    reduced_nbytes: int = 0
    """Bytes of the gathered weights' gradients that it reduces without a change of dtype."""
    may_start_early: bool = False
    """Whether it gathers several weights from their shards at rest, which can start before its block."""


def collectives(keeps: SavedTensors) -> Iterator[Carried]:
    """Yield all collectives, those of several weights first."""
    graph, conversions = keeps.graph, keeps.conversions
    messages = _Messages(keeps)
    steps: defaultdict[str, list[Conversion]] = defaultdict(list)
    for conversion in conversions:
        steps[conversion.tensor].append(conversion)
    seen: set[Conversion] = set()
    for group in groups(graph, conversions, keeps.mesh, keeps.precision):
        together = tuple(steps[member.tensor][group.hop] for member in group.members)
        seen.update(together)
        at_rest = group.hop == 0 and is_gather(group.members[0].source, group.target)
        yield replace(messages.of(together), may_start_early=at_rest)
    for conversion in conversions:
        if conversion not in seen:
            yield messages.of((conversion,))


def made_by(conversion: Conversion) -> tuple[str, Sharding]:
    """Return the form that a conversion produces."""
    return conversion.tensor, conversion.target


@dataclass(frozen=True)
class _Messages:
    keeps: SavedTensors

    def of(self, conversions: tuple[Conversion, ...]) -> Carried:
        """Return the collective with its buffer bytes on one rank."""
        first, carried = conversions[0], self._of_own(conversions)
        if first.forward:
            carried = replace(carried, forward_nbytes=self._largest(first, "forward"))
        if first.backward:
            carried = replace(carried, backward_nbytes=self._largest(first, "backward"))
        return carried

    def _largest(self, c: Conversion, direction: Direction) -> int:
        tensor = self.keeps.graph.tensors[c.tensor]
        sent = c.step.traffic(tensor.shape, tensor.itemsize, self.keeps.mesh, tensor.differentiable)
        return max((part.nbytes for part in sent if part.direction == direction), default=0)

    def _of_own(self, conversions: tuple[Conversion, ...]) -> Carried:
        """Return it as autopar's collectives perform it."""
        first = conversions[0]
        if not is_gather(first.source[first.axis], first.target[first.axis]):
            forward, backward = self._of_other(first)
            return Carried(conversions, forward, backward + self._cast_nbytes(conversions, 0))
        turned = sum(self._nbytes(c, c.source) for c in conversions if self._is_turned(c))
        apart = sum(self._nbytes(c, c.target) for c in conversions if not self._leads(c))
        reduced = [c for c in conversions if c.target[c.axis] is R]
        copied = sum_of = sum(map(self._reduced_nbytes, reduced))
        if len(reduced) == 1 or copied > NBYTES:
            copied = sum(self._reduced_nbytes(c) for c in reduced if not self._is_ready(c))
        if all(self._reduction(c) is None for c in reduced):
            return Carried(conversions, max(turned, apart), copied, sum_of)
        if len(reduced) == 1 or sum_of > NBYTES:
            copied = sum(self._reduced_nbytes(c) for c in reduced if not self._leads(c))
        return Carried(conversions, max(turned, apart), self._cast_nbytes(conversions, copied))

    def _cast_nbytes(self, conversions: tuple[Conversion, ...], message: int) -> int:
        """Return the bytes that reductions in another dtype need: the gradients in it, with a message
        and the sums, or with the sums in both dtypes (those in the tensor's own count elsewhere)."""
        cast = [c for c in conversions if c.target[c.axis] is R and self._reduction(c) is not None]
        given = sum(map(self._reduced_nbytes, cast))
        sums = sum(self._wide(c, c.source) for c in cast)
        own = sum(self._nbytes(c, c.source) for c in cast)
        return given + max(message + sums - own, sums)

    def _is_turned(self, c: Conversion) -> bool:
        return (c.tensor, c.source) in self.keeps.turned

    def _of_other(self, c: Conversion) -> tuple[int, int]:
        """Return forward and backward bytes of steps other than gathers: all-to-alls and scatters."""
        source, target = c.source[c.axis], c.target[c.axis]
        if not isinstance(target, S):
            return 0, 0
        if isinstance(source, S):
            nbytes, turned = self._nbytes(c, c.target), self._is_turned(c)
            there = self._cuts_copies(c.source, c.target, c)
            back = self._cuts_copies(c.target, c.source, c)
            return nbytes * ((there or turned) + back), nbytes * (back + there)
        whole = self._nbytes(c, c.source)
        backward = 0 if self._leads(c) or source not in (P, I) else whole
        sends_copy = source is P and (self._is_turned(c) or not self._leads(c))
        return (whole if sends_copy else 0), backward

    def _cuts_copies(self, form: Sharding, to: Sharding, c: Conversion) -> bool:
        """Return whether the parts of a form are copied to be sent: all but those of its leading dim."""
        mesh = self.keeps.mesh
        shard, other = to.local(c.axis, mesh), form.local(c.axis, mesh)
        assert isinstance(shard, S) and isinstance(other, S)
        inside = other.dim == shard.dim and other.of < shard.of  # ranks already split the blocks
        blocks = shard.of // (mesh.sizes[c.axis] if inside else 1)
        return self._before(shard.dim, c) * blocks > 1

    def _leads(self, c: Conversion) -> bool:
        """Return whether the parts, concatenated by rank, are the whole: the leading dim is split."""
        part = c.source.local(c.axis, self.keeps.mesh)
        if not isinstance(part, S):
            part = c.target.local(c.axis, self.keeps.mesh)
        assert isinstance(part, S)
        return self._before(part.dim, c) * part.of == 1

    def _before(self, dim: int, c: Conversion) -> int:
        """Return the size of the dims before one, over all ranks.

        If a rank's part of them has a single entry, there is no copy, but the planner interpolates
        between numbers of samples, and may not take the one of a single sample for the rule.
        """
        return math.prod(self.keeps.graph.tensors[c.tensor].shape[:dim])

    def _is_ready(self, c: Conversion) -> bool:
        """Return whether its gradient can be reduced without a copy."""
        return self._leads(c) and self._reduction(c) is None

    def _nbytes(self, c: Conversion, form: Sharding) -> int:
        return local_nbytes(self.keeps.graph.tensors[c.tensor], form, self.keeps.mesh)

    def _reduced_nbytes(self, c: Conversion) -> int:
        """Return the bytes of the gathered form's gradient in the dtype of its reduction."""
        return self._wide(c, c.target)

    def _wide(self, c: Conversion, form: Sharding) -> int:
        """Return the bytes of a form in the dtype of the gradient's reduction."""
        reduction, tensor = self._reduction(c), self.keeps.graph.tensors[c.tensor]
        wide = tensor.itemsize if reduction is None else ITEMSIZE[reduction]
        return self._nbytes(c, form) // tensor.itemsize * wide

    def _reduction(self, c: Conversion) -> str | None:
        return reduction_dtype(c.tensor, self.keeps.graph, self.keeps.precision)
