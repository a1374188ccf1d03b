"""Applies a sharding to tensors: a rank's part of a whole tensor, and the DTensor placements."""

from __future__ import annotations

import math

import torch
from torch.distributed.tensor import Placement, Replicate, Shard

from autopar.ir.mesh import Mesh
from autopar.ir.placement import S, Sharding
from autopar.runtime import _torch


def part(
    whole: torch.Tensor, sharding: Sharding, mesh: Mesh, coordinate: tuple[int, ...]
) -> torch.Tensor:
    """Return the part of `whole` for the rank at `coordinate`, contiguous; it may be a view."""
    here = whole
    for dim in range(whole.dim()):
        here = _cut(here, dim, dim, sharding, mesh, coordinate)
    return here.contiguous()


def _cut(
    here: torch.Tensor,
    place: int,
    dim: int,
    sharding: Sharding,
    mesh: Mesh,
    coordinate: tuple[int, ...],
) -> torch.Tensor:
    """Cut the tensor's dim `place` as the sharding cuts `dim`, for the rank at `coordinate`."""
    for _, axis in sharding.cuts(dim):
        kind = sharding.local(axis, mesh)
        assert isinstance(kind, S)
        blocks = here.unflatten(place, (kind.of, mesh.sizes[axis], -1))
        here = blocks.select(place + 1, coordinate[axis]).flatten(place, place + 1)
    return here


def held(
    size: int, dim: int, sharding: Sharding, mesh: Mesh, coordinate: tuple[int, ...]
) -> tuple[slice, ...]:
    """Return the indices of a whole dim that the rank at `coordinate` holds, in order, as runs.

    If a dim's only cut does not divide it, the parts are those of `torch.chunk`.
    """
    cuts = [(of, axis) for of, axis in sharding.cuts(dim) if mesh.sizes[axis] > 1]
    if len(cuts) == 1 and cuts[0][0] == 1 and size % mesh.sizes[cuts[0][1]]:
        axis = cuts[0][1]
        most = math.ceil(size / mesh.sizes[axis])
        start, stop = (min(size, (coordinate[axis] + more) * most) for more in (0, 1))
        return (slice(start, stop),) if stop > start else ()
    indices = _cut(torch.arange(size), 0, dim, sharding, mesh, coordinate).tolist()
    runs: list[slice] = []
    for index in indices:
        if runs and runs[-1].stop == index:
            runs[-1] = slice(runs[-1].start, index + 1)
        else:
            runs.append(slice(index, index + 1))
    return tuple(runs)


def own_part(
    whole: torch.Tensor, sharding: Sharding, mesh: Mesh, coordinate: tuple[int, ...]
) -> torch.Tensor:
    """Return `part` in its own storage, so that `whole` can be freed."""
    found = part(whole, sharding, mesh, coordinate)
    shares = found.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    return found.clone() if shares else found


def placements(sharding: Sharding, mesh: Mesh) -> tuple[Placement, ...]:
    """Return the sharding as DTensor placements.

    DTensor applies mesh axes in order.  An axis that splits blocks made by later axes has a strided
    shard: it sees the dim, as earlier axes left it, as that many blocks.
    """
    return tuple(_placement(sharding, mesh, axis) for axis in range(len(mesh)))


def _placement(sharding: Sharding, mesh: Mesh, axis: int) -> Placement:
    kind = sharding[axis]
    if not isinstance(kind, S):
        return Replicate()
    earlier = (a for of, a in sharding.cuts(kind.dim) if of < kind.of and a < axis)
    blocks = kind.of // math.prod(mesh.sizes[a] for a in earlier)
    return Shard(kind.dim) if blocks == 1 else _torch.strided_shard(kind.dim, blocks)
