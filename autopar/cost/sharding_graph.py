"""The graph of a tensor's shardings ("forms") on a mesh; edges are steps that change one axis.

A tensor's sizes decide only which forms divide it.  Everything else depends on the mesh and the set of
types, and is computed once for each.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from autopar.cost.chains import Edge, Edges
from autopar.ir.conversion import Step, letters
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S, Sharding, Type, letter_of

Shards = tuple[tuple[Type, ...], ...]
"""For each axis, the splits that occur on it."""
KEPT = 4096
"""Maximum number of cached webs, so that the cache of a long-lived process is bounded."""
Kind = tuple[object, ...]
"""Axis, types on it before and after without their dims, number of parts of the larger of both local
tensors, and whether the tensor is a partial sum on another axis."""


@dataclass(frozen=True, eq=False)
class Web:
    """Forms and steps; steps of one kind cost the same for tensors of the same size."""

    forms: tuple[Sharding, ...]
    kinds: Mapping[Kind, Step]
    """One representative step of each kind."""
    steps: Edges
    """Edges between forms; kinds are numbered in the order of `kinds`."""

    @cached_property
    def index(self) -> dict[Sharding, int]:
        """The index of each form."""
        return {form: i for i, form in enumerate(self.forms)}


@lru_cache(maxsize=KEPT)
def web_of(mesh: Mesh, shards: Shards, shape: tuple[int, ...], differentiable: bool) -> Web:
    """Return the web of all forms that divide the shape, of letters and each axis' `shards`."""
    fits = _every(mesh, shards, differentiable).fitting(shape)
    return _web(mesh, shards, differentiable, fits.tobytes())


@dataclass(frozen=True, eq=False)
class _Every:
    """All forms of some types, and their requirements on a shape.

    `parts[form, dim]` is the number by which a dim must be divisible, 0 if the form is impossible;
    `rank[form]` is the minimum number of dims.
    """

    forms: tuple[Sharding, ...]
    parts: NDArray[np.int64]
    rank: NDArray[np.int64]

    def fitting(self, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Return a mask of the forms that fit, equal to `Sharding.fits`."""
        dims = self.parts.shape[1]
        sizes = np.array([*shape[:dims], *[1] * (dims - len(shape))], dtype=np.int64)
        divided = (self.parts > 0) & (sizes % np.maximum(self.parts, 1) == 0)
        return np.asarray(divided.all(axis=1) & (self.rank <= len(shape)))


@lru_cache(maxsize=KEPT)
def _every(mesh: Mesh, shards: Shards, differentiable: bool) -> _Every:
    plain = letters(differentiable)
    forms = tuple(map(Sharding, itertools.product(*((*plain, *own) for own in shards))))
    rank = [1 + max((k.dim for k in form if isinstance(k, S)), default=-1) for form in forms]
    parts = [[_parts(form, dim, mesh) for dim in range(max(rank))] for form in forms]
    return _Every(forms, np.array(parts, dtype=np.int64).reshape(len(forms), -1), np.array(rank))


def _parts(form: Sharding, dim: int, mesh: Mesh) -> int:
    """Return the number of parts into which a form splits a dim; 0 if its splits overlap."""
    parts = 1
    for of, axis in form.cuts(dim):
        if of % parts:
            return 0
        parts = of * mesh.sizes[axis]
    return parts


@lru_cache(maxsize=KEPT)
def _web(mesh: Mesh, shards: Shards, differentiable: bool, fits: bytes) -> Web:
    every = _every(mesh, shards, differentiable).forms
    forms = tuple(itertools.compress(every, fits))
    share = [_share(form, mesh) for form in forms]
    kinds: dict[Kind, Step] = {}
    number: dict[Kind, int] = {}
    edges: list[Edge] = []
    exists: dict[Kind, bool] = {}
    for axis, here, there in _neighbours(forms, len(mesh)):
        a, b = forms[here][axis], forms[there][axis]
        step = Step(axis, forms[here], forms[there])
        asked = (
            (axis, forms[here], forms[there])
            if _same_dim(a, b)
            else (axis, letter_of(a), letter_of(b))
        )
        if asked not in exists:
            exists[asked] = step.fault(mesh, differentiable) is None
        if exists[asked]:
            kind = (axis, letter_of(a), letter_of(b), min(share[here], share[there]), step.of_part)
            kinds.setdefault(kind, step)
            edges.append((here, there, number.setdefault(kind, len(number))))
    return Web(forms, kinds, Edges.of(len(forms), edges))


def _share(form: Sharding, mesh: Mesh) -> int:
    """Return the number of parts into which a form splits the tensor."""
    pairs = zip(form, mesh.sizes, strict=True)
    return math.prod(size for kind, size in pairs if isinstance(kind, S))


def _same_dim(a: Type, b: Type) -> bool:
    """Return whether both split one dim: only then a step's existence depends on the other axes."""
    return isinstance(a, S) and isinstance(b, S) and a.dim == b.dim


def _neighbours(forms: tuple[Sharding, ...], axes: int) -> Iterator[tuple[int, int, int]]:
    """Yield (axis, from, to) for all ordered pairs of forms that differ on exactly one axis."""
    for axis in range(axes):
        alike: defaultdict[object, list[int]] = defaultdict(list)
        for number, form in enumerate(forms):
            alike[form.types[:axis], form.types[axis + 1 :]].append(number)
        for numbers in alike.values():
            for here, there in itertools.permutations(numbers, 2):
                yield axis, here, there
