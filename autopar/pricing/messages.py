"""What is converted in one collective, and the memory that its messages take beside what is made.

Where the dim that is split leads, parts are gathered into the tensor that they make, elsewhere into one
more.  Gradients of a block are copied into one message, unless that is larger than a bucket.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from autopar.buckets import NBYTES
from autopar.graph import ITEMSIZE, Graph
from autopar.grouping import groups, is_gather
from autopar.mesh import Mesh
from autopar.placement import R, S, Sharding
from autopar.plans.plan import Conversion, reduction_dtype
from autopar.pricing.operators import local_nbytes


@dataclass(frozen=True)
class Carried:
    """Conversions that one collective carries: several weights', or a single one."""

    conversions: tuple[Conversion, ...]
    gather_nbytes: int
    """Of messages in the forward, or where it is gathered again."""
    reduce_nbytes: int
    """Of messages in the backward."""


def collectives(
    graph: Graph, conversions: tuple[Conversion, ...], mesh: Mesh, precision: str
) -> Iterator[Carried]:
    """All of them; those of several weights first."""
    messages = _Messages(graph, mesh, precision)
    steps: defaultdict[str, list[Conversion]] = defaultdict(list)
    for conversion in conversions:
        steps[conversion.tensor].append(conversion)
    seen: set[Conversion] = set()
    for group in groups(graph, conversions, mesh, precision):
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
    graph: Graph
    mesh: Mesh
    precision: str

    def of(self, conversions: tuple[Conversion, ...]) -> Carried:
        """Bytes of one rank; what does not gather takes none."""
        gathers = [c for c in conversions if is_gather(c.source[c.axis], c.target[c.axis])]
        apart = sum(self._nbytes(c) for c in gathers if not self._leads(c))
        reduced = [c for c in gathers if c.target[c.axis] is R]
        copied = sum(map(self._reduced_nbytes, reduced))
        if len(reduced) == 1 or copied > NBYTES:
            copied = sum(self._reduced_nbytes(c) for c in reduced if not self._is_ready(c))
        return Carried(conversions, apart, copied)

    def _leads(self, c: Conversion) -> bool:
        """Whether parts, rank by rank, are what is made of them."""
        source = c.source.local(c.axis, self.mesh)
        assert isinstance(source, S)
        shape = c.target.local_shape(self.graph.tensors[c.tensor].shape, self.mesh)
        return math.prod(shape[: source.dim]) * source.of == 1

    def _is_ready(self, c: Conversion) -> bool:
        """Whether its gradient can be summed where it is."""
        return self._leads(c) and self._reduction(c) is None

    def _nbytes(self, c: Conversion) -> int:
        return local_nbytes(self.graph.tensors[c.tensor], c.target, self.mesh)

    def _reduced_nbytes(self, c: Conversion) -> int:
        """In the dtype in which gradients are summed."""
        reduction, tensor = self._reduction(c), self.graph.tensors[c.tensor]
        wide = tensor.itemsize if reduction is None else ITEMSIZE[reduction]
        return self._nbytes(c) // tensor.itemsize * wide

    def _reduction(self, c: Conversion) -> str | None:
        return reduction_dtype(c.tensor, self.graph, self.precision)
