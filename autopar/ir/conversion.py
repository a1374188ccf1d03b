"""Conversions of a tensor from one sharding to another, one mesh axis at a time.

Each single-axis step has one collective in the forward and, with a gradient, one in the backward (table
in docs/types.md); some of them send nothing.  The communication volume is the size in bytes of the
*larger* local tensor: the output of an all-gather, the input of a reduce-scatter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from autopar.ir.collectives import COLLECTIVES, added, own
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, N, P, R, S, Sharding, Type, dual

Direction = Literal["forward", "backward"]
_DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")


def letters(differentiable: bool) -> tuple[Type, ...]:
    """Return the types other than `S` that a tensor may have."""
    return (R, I, P) if differentiable else (N, P)


@dataclass(frozen=True, slots=True)
class Traffic:
    """One exchange of a collective: its mesh axis, its kind, its direction, and its bytes per rank.

    `carried_nbytes`: the bytes of the gradient that it carries; 0: of one that is never compressed.
    `message`: its number among the messages of one compressed gradient.
    """

    axis: int
    collective: str
    direction: Direction
    nbytes: int
    carried_nbytes: int = 0
    message: int = 0

    @property
    def bucket_nbytes(self) -> int:
        """The bytes that it takes up in a bucket."""
        return self.carried_nbytes or self.nbytes


@dataclass(frozen=True, slots=True)
class Copy:
    """A local copy of a step: its direction, and the bytes it produces per rank."""

    direction: Direction
    nbytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """A conversion that changes the type on one mesh axis and keeps the others.

    `forward` and `backward` are added collectives that perform it; "": autopar's own do.
    """

    axis: int
    source: Sharding
    target: Sharding
    forward: str = ""
    backward: str = ""

    def collectives(self, differentiable: bool) -> tuple[str, str] | None:
        """Return the collectives of forward and backward, or None if there is no such step.

        The backward's is "" for a tensor without gradient.
        """
        source, target = self.source[self.axis], self.target[self.axis]
        forward = own(source, target)
        wrong = (N,) if differentiable else (R, I)
        if source == target or not forward or source in wrong or target in wrong:
            return None
        backward = own(dual(target), dual(source)) if differentiable else ""
        return self.forward or forward, self.backward or backward

    def ways(self, differentiable: bool) -> Iterator[Step]:
        """Yield the step as autopar's collectives perform it, then with every choice of added ones."""
        source, target = self.source[self.axis], self.target[self.axis]
        backwards = added(dual(target), dual(source)) if differentiable else ()
        for pair in itertools.product(("", *added(source, target)), ("", *backwards)):
            yield replace(self, forward=pair[0], backward=pair[1])

    @property
    def of_part(self) -> bool:
        """Whether the tensor is a partial sum on another axis during this step."""
        return any(kind is P for axis, kind in enumerate(self.source) if axis != self.axis)

    def fault(self, mesh: Mesh, differentiable: bool) -> str | None:
        """Return why this step does not exist, or None if it does."""
        source, target = self.source[self.axis], self.target[self.axis]
        if self.source.with_type(self.axis, target) != self.target:
            return "a step changes one axis at a time"
        if self.collectives(differentiable) is None:
            return f"there is no step {source} -> {target}"
        ends = (source, target), (dual(target), dual(source))
        for name, pair in zip((self.forward, self.backward), ends, strict=True):
            if name and name not in added(*pair):
                return (
                    f"no collective {name!r} for {pair[0]} -> {pair[1]} was added. Import the module "
                    "that adds it, on every rank"
                )
        if not (isinstance(source, S) and isinstance(target, S)):
            return None
        before, after = self.source.local(self.axis, mesh), self.target.local(self.axis, mesh)
        if isinstance(before, S) and isinstance(after, S) and before.dim == after.dim:
            inner, outer = max(before.of, after.of), min(before.of, after.of)
            if inner % (outer * mesh.sizes[self.axis]):
                return f"the blocks of {source} and {target} overlap"
        return None

    def traffic(
        self, shape: tuple[int, ...], itemsize: int, mesh: Mesh, differentiable: bool
    ) -> tuple[Traffic, ...]:
        """Return the collectives of this step on a tensor of this global shape."""
        pair, ranks = self.collectives(differentiable), mesh.sizes[self.axis]
        if pair is None or ranks == 1:
            return ()
        _, larger = self._counts(shape, mesh)
        return tuple(
            Traffic(self.axis, kind, direction, round(nbytes))
            for direction, name in zip(_DIRECTIONS, pair, strict=True)
            for kind, nbytes in (COLLECTIVES[name].sent(larger * itemsize, ranks) if name else ())
        )

    def copies(
        self, shape: tuple[int, ...], itemsize: int, mesh: Mesh, differentiable: bool
    ) -> tuple[Copy, ...]:
        """Return the local copies of this step on a tensor of this global shape."""
        pair = self.collectives(differentiable)
        if pair is None or mesh.sizes[self.axis] == 1:
            return ()
        smaller, larger = self._counts(shape, mesh)
        return tuple(
            Copy(direction, (smaller if work == "slice" else larger) * itemsize)
            for direction, name in zip(_DIRECTIONS, pair, strict=True)
            if name and (work := COLLECTIVES[name].copies)
        )

    @property
    def hands_on_gradient(self) -> bool:
        """Whether source and target share one gradient, so that the backward does nothing."""
        pair = self.collectives(differentiable=True)
        if pair is None:
            return True
        backward = COLLECTIVES[pair[1]]
        return backward.sends is None and backward.copies is None

    def _counts(self, shape: tuple[int, ...], mesh: Mesh) -> tuple[int, int]:
        """Return the elements per rank of the smaller and of the larger of source and target."""
        before, after = self.source.local_shape(shape, mesh), self.target.local_shape(shape, mesh)
        smaller, larger = sorted((math.prod(before), math.prod(after)))
        return smaller, larger
