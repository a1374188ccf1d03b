"""Conversions of a tensor from one sharding to another, one mesh axis at a time.

Each single-axis step has at most one collective in the forward and one in the backward (table in
docs/types.md).  Its communication volume is the size in bytes of the *larger* local tensor: the output
of an all-gather, the input of a reduce-scatter, the tensor of an all-reduce or an all-to-all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, N, P, R, S, Sharding, Type

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
Direction = Literal["forward", "backward"]
_DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")

Local = Literal["slice", "fill"]
"""Local copy of a step that sends nothing: take a slice, or fill up with zeros to the larger shape."""

# (source, target) -> (forward, backward); None if nothing is sent.
_TABLE: dict[tuple[str, str], tuple[Collective | None, Collective | None]] = {
    ("I", "R"): (None, "all_reduce"),
    ("P", "I"): ("all_reduce", None),
    ("P", "R"): ("all_reduce", "all_reduce"),
    ("P", "S"): ("reduce_scatter", "all_gather"),
    ("S", "R"): ("all_gather", "reduce_scatter"),
    ("S", "I"): ("all_gather", None),
    ("I", "S"): (None, "all_gather"),
    ("R", "S"): (None, None),
    ("R", "I"): (None, None),
    ("I", "P"): (None, None),
    ("R", "P"): (None, None),
    ("S", "P"): (None, None),
    ("S", "S"): ("all_to_all", "all_to_all"),
}
_TABLE_NO_GRADIENT: dict[tuple[str, str], tuple[Collective | None, None]] = {
    ("N", "S"): (None, None),
    ("N", "P"): (None, None),
    ("S", "N"): ("all_gather", None),
    ("P", "N"): ("all_reduce", None),
    ("P", "S"): ("reduce_scatter", None),
    ("S", "P"): (None, None),
    ("S", "S"): ("all_to_all", None),
}
# (source, target) -> (forward, backward) local copies; steps in no table only change the type.
_LOCAL: dict[tuple[str, str], tuple[Local | None, Local | None]] = {
    ("S", "I"): (None, "slice"),
    ("I", "S"): ("slice", None),
    ("R", "S"): ("slice", "fill"),
    ("R", "I"): (None, "fill"),
    ("I", "P"): ("fill", None),
    ("R", "P"): ("fill", "fill"),
    ("S", "P"): ("fill", "slice"),
    ("N", "S"): ("slice", None),
    ("N", "P"): ("fill", None),
}


def _kind(of: Type) -> str:
    return "S" if isinstance(of, S) else of.name


def collectives(
    source: Type, target: Type, differentiable: bool
) -> tuple[Collective | None, Collective | None] | None:
    """Return the (forward, backward) collectives of a step on one axis, or None if it does not exist."""
    if source == target:
        return None
    table = _TABLE if differentiable else _TABLE_NO_GRADIENT
    return table.get((_kind(source), _kind(target)))


def letters(differentiable: bool) -> tuple[Type, ...]:
    """Return the types other than `S` that a tensor may have."""
    return (R, I, P) if differentiable else (N, P)


@dataclass(frozen=True, slots=True)
class Traffic:
    """One collective: its mesh axis, its kind, its direction, and its bytes per rank."""

    axis: int
    collective: Collective
    direction: Direction
    nbytes: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A local copy of a step: its direction, and the bytes it produces per rank."""

    direction: Direction
    nbytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """A conversion that changes the type on one mesh axis and keeps the others."""

    axis: int
    source: Sharding
    target: Sharding

    @property
    def of_part(self) -> bool:
        """Whether the tensor is a partial sum on another axis during this step."""
        return any(kind is P for axis, kind in enumerate(self.source) if axis != self.axis)

    def fault(self, mesh: Mesh, differentiable: bool) -> str | None:
        """Return why this step does not exist, or None if it does."""
        source, target = self.source[self.axis], self.target[self.axis]
        if self.source.with_type(self.axis, target) != self.target:
            return "a step changes one axis at a time"
        if collectives(source, target, differentiable) is None:
            return f"there is no step {source} -> {target}"
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
        pair = collectives(self.source[self.axis], self.target[self.axis], differentiable)
        if pair is None or mesh.sizes[self.axis] == 1:
            return ()
        _, larger = self._counts(shape, mesh)
        return tuple(
            Traffic(self.axis, collective, direction, larger * itemsize)
            for direction, collective in zip(_DIRECTIONS, pair, strict=True)
            if collective is not None
        )

    def copies(
        self, shape: tuple[int, ...], itemsize: int, mesh: Mesh, differentiable: bool
    ) -> tuple[Copy, ...]:
        """Return the local copies of this step on a tensor of this global shape."""
        if mesh.sizes[self.axis] == 1:
            return ()
        ends = _kind(self.source[self.axis]), _kind(self.target[self.axis])
        smaller, larger = self._counts(shape, mesh)
        return tuple(
            Copy(direction, (smaller if work == "slice" else larger) * itemsize)
            for direction, work in zip(_DIRECTIONS, _LOCAL.get(ends, (None, None)), strict=True)
            if work is not None and (differentiable or direction == "forward")
        )

    @property
    def hands_on_gradient(self) -> bool:
        """Whether source and target share one gradient, so that the backward does nothing."""
        source, target = self.source[self.axis], self.target[self.axis]
        sent = collectives(source, target, differentiable=True)
        copied = _LOCAL.get((_kind(source), _kind(target)))
        return not (sent and sent[1]) and not (copied and copied[1])

    def _counts(self, shape: tuple[int, ...], mesh: Mesh) -> tuple[int, int]:
        """Return the elements per rank of the smaller and of the larger of source and target."""
        before, after = self.source.local_shape(shape, mesh), self.target.local_shape(shape, mesh)
        smaller, larger = sorted((math.prod(before), math.prod(after)))
        return smaller, larger
