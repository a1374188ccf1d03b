"""Conversions: how a tensor moves from one sharding to another, one mesh axis at a time.

The table is design.md's: each single-axis step has one collective forward and one backward.
Communication volume is the number of bytes of the *larger* local tensor of the step: the output of
an all-gather, the input of a reduce-scatter, the tensor of an all-reduce or an all-to-all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from autopar.mesh import Mesh
from autopar.placement import I, N, P, R, S, Sharding, Type

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
Direction = Literal["forward", "backward"]

# (source, target) -> (forward, backward); None is local work (a slice, a zero-pad, nothing).
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


def _kind(of: Type) -> str:
    return "S" if isinstance(of, S) else of.name


def collectives(
    source: Type, target: Type, differentiable: bool
) -> tuple[Collective | None, Collective | None] | None:
    """(forward, backward) collectives of a step on one axis, or None where there is no such step."""
    if source == target:
        return None
    table = _TABLE if differentiable else _TABLE_NO_GRADIENT
    return table.get((_kind(source), _kind(target)))


def letters(differentiable: bool) -> tuple[Type, ...]:
    """The types without a dim that a tensor may have."""
    return (R, I, P) if differentiable else (N, P)


@dataclass(frozen=True, slots=True)
class Traffic:
    """One collective: what, on which axis, in which direction, and how many bytes on one rank."""

    axis: int
    collective: Collective
    direction: Direction
    nbytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """One axis changes its type; the other axes keep theirs."""

    axis: int
    source: Sharding
    target: Sharding

    def fault(self, mesh: Mesh, differentiable: bool) -> str | None:
        """Why there is no such step, or None if there is."""
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
        """The collectives of this step on a tensor of this global shape."""
        pair = collectives(self.source[self.axis], self.target[self.axis], differentiable)
        if pair is None or mesh.sizes[self.axis] == 1:
            return ()
        larger = max(
            math.prod(self.source.local_shape(shape, mesh)),
            math.prod(self.target.local_shape(shape, mesh)),
        )
        nbytes = larger * itemsize
        directions: tuple[Direction, Direction] = ("forward", "backward")
        return tuple(
            Traffic(self.axis, collective, direction, nbytes)
            for direction, collective in zip(directions, pair, strict=True)
            if collective is not None
        )
