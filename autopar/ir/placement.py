"""Placement types: how a tensor's value *and* its gradient are distributed over one mesh axis.

A `Sharding` is one type per mesh axis.  A shard is a *flat row-major position* inside its dim:
``S(d, of=k)`` treats dim d as k equal blocks and splits each of them.  Two axes that split the same
dim have different positions, so the type determines the nesting order: on a 2x4 mesh,
``[S(0), S(0, of=2)]`` splits dim 0 over x first and then over y; ``[S(0, of=4), S(0)]`` splits it over
y first.  Positions are preserved by views, so shardings are closed under views.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from autopar.errors import PlacementError
from autopar.ir.mesh import Mesh


@dataclass(frozen=True, slots=True)
class Letter:
    """A type that does not split the tensor: one of the constants `R`, `I`, `P`, `N`."""

    name: str

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def __reduce__(self) -> tuple[object, ...]:
        """Unpickle to one of the four constants, so that comparison with `is` works across processes."""
        return parse_type, (self.name,)


R = Letter("R")
"""Replicated: equal on all ranks, used differently by each; its gradient is a partial sum."""
I = Letter("I")
"""Invariant: equal on all ranks, used the same way by all; its gradient is invariant."""
P = Letter("P")
"""Partial sum: the value is the sum over ranks; its gradient is replicated."""
N = Letter("N")
"""No gradient: equal on all ranks, and the tensor has no gradient."""


@dataclass(frozen=True, slots=True)
class S:
    """Sharded: dim `dim` is treated as `of` equal blocks, each of which is split; so is its gradient."""

    dim: int
    of: int = 1

    def __str__(self) -> str:
        return f"S({self.dim})" if self.of == 1 else f"S({self.dim}, of={self.of})"

    __repr__ = __str__


Type = Letter | S
_LETTERS = {letter.name: letter for letter in (R, I, P, N)}
_SHARD = re.compile(r"S\((\d+)(?:,of=(\d+))?\)")


def parse_type(text: str) -> Type:
    """Read ``R``, ``I``, ``P``, ``N``, ``S(1)`` or ``S(1, of=3)``."""
    compact = text.replace(" ", "")
    if compact in _LETTERS:
        return _LETTERS[compact]
    match = _SHARD.fullmatch(compact)
    if match is None or match[2] == "0":
        raise PlacementError(
            f"Cannot read the type {text!r}; write R, I, P, N, S(1) or S(1, of=3)."
        )
    return S(int(match[1]), int(match[2] or 1))


def letter_of(kind: Type) -> str:
    """Return the type's letter, ``S`` for every shard."""
    return "S" if isinstance(kind, S) else kind.name


def dual(kind: Type) -> Type:
    """Return the type of the gradient of a tensor of this type."""
    return P if kind is R else R if kind is P else kind


class _Hashed:
    """A slot for a cached hash; hashes of shardings are computed very often."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True)
class Sharding(_Hashed):
    """One type per mesh axis.  Prints as ``[S(0), R]`` and parses back."""

    types: tuple[Type, ...]

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash(self.types))
            return self._hash

    @classmethod
    def all(cls, letter: Type, mesh: Mesh) -> Sharding:
        """Return the sharding with the same type on every axis."""
        return cls((letter,) * len(mesh))

    @classmethod
    def parse(cls, text: str) -> Sharding:
        """Read ``[S(0), R]``."""
        body = text.strip()
        if not (body.startswith("[") and body.endswith("]")):
            raise PlacementError(f"Cannot read the sharding {text!r}; write e.g. [S(0), R].")
        return cls(tuple(parse_type(part) for part in re.split(r",(?![^(]*\))", body[1:-1])))

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.types))}]"

    __repr__ = __str__

    def __iter__(self) -> Iterator[Type]:
        return iter(self.types)

    def __getitem__(self, axis: int) -> Type:
        return self.types[axis]

    def __len__(self) -> int:
        return len(self.types)

    def with_type(self, axis: int, new: Type) -> Sharding:
        """Return the sharding with the type of one axis replaced."""
        return Sharding((*self.types[:axis], new, *self.types[axis + 1 :]))

    def cuts(self, dim: int) -> tuple[tuple[int, int], ...]:
        """Return (position, axis) of every split of a dim, outermost first."""
        return tuple(
            sorted((t.of, a) for a, t in enumerate(self.types) if isinstance(t, S) and t.dim == dim)
        )

    def fault(self, shape: tuple[int, ...], mesh: Mesh) -> str | None:
        """Return why this sharding does not fit a tensor of this global shape, or None if it does."""
        if len(self.types) != len(mesh):
            return f"{self} has {len(self.types)} types for the {len(mesh)} axes of mesh ({mesh})"
        for axis, kind in enumerate(self.types):
            if isinstance(kind, S) and not kind.dim < len(shape):
                return f"{kind} on axis {mesh.names[axis]!r} names a dim that shape {shape} lacks"
        for dim, size in enumerate(shape):
            split = 1
            for of, axis in self.cuts(dim):
                if of % split:
                    return f"{self} splits dim {dim} twice at overlapping positions"
                split = of * mesh.sizes[axis]
            if split > 1 and size % split:
                return (
                    f"dim {dim} of shape {shape} has size {size}, which {self} splits into {split}"
                )
        return None

    def fits(self, shape: tuple[int, ...], mesh: Mesh) -> bool:
        """Return whether this sharding fits a tensor of this global shape."""
        return self.fault(shape, mesh) is None

    def check(self, shape: tuple[int, ...], mesh: Mesh) -> None:
        """Raise `PlacementError` unless this sharding fits a tensor of this global shape."""
        fault = self.fault(shape, mesh)
        if fault:
            raise PlacementError(f"{fault} on mesh ({mesh}).")

    def local_shape(self, shape: tuple[int, ...], mesh: Mesh) -> tuple[int, ...]:
        """Return the shape of one rank's shard of a tensor of this global shape."""
        local = list(shape)
        for kind, size in zip(self.types, mesh.sizes, strict=True):
            if isinstance(kind, S):
                local[kind.dim] //= size
        return tuple(local)

    def local(self, axis: int, mesh: Mesh) -> Type:
        """Return the type of an axis relative to one rank's shard: `of` counts the *local* dim's blocks.

        Axes that split the same dim further out have already divided the blocks among their ranks.
        """
        kind = self.types[axis]
        if not isinstance(kind, S):
            return kind
        outer = [a for of, a in self.cuts(kind.dim) if of < kind.of]
        return S(kind.dim, kind.of // math.prod(mesh.sizes[a] for a in outer))

    def splits(self, at: S, axis: int, mesh: Mesh) -> bool:
        """Return whether the axis splits the tensor at position `at`, directly or inside others."""
        kind = self.types[axis]
        if not isinstance(kind, S) or kind.dim != at.dim:
            return False
        outer = [mesh.sizes[a] for of, a in self.cuts(at.dim) if at.of <= of < kind.of]
        return kind.of == at.of * math.prod(outer)

    def rests(self, mesh: Mesh) -> bool:
        """Return whether a parameter at rest may have this sharding.

        Axes that split the same dim must nest without gaps: `DTensor` does not read back correctly any
        other layout of two axes on one dim (torch 2.13).
        """
        for dim in {kind.dim for kind in self.types if isinstance(kind, S)}:
            cuts = [(of, axis) for of, axis in self.cuts(dim) if mesh.sizes[axis] > 1]
            position = 1
            for of, axis in cuts if len(cuts) > 1 else ():
                if of != position:
                    return False
                position *= mesh.sizes[axis]
        return True

    @property
    def is_split(self) -> bool:
        """Whether any axis shards the tensor."""
        return any(isinstance(t, S) for t in self.types)
