"""Computes the messages that redistribute a tensor between two meshes with any layouts.

Every target rank receives each element once.  If several source ranks hold the same tile, the targets
are distributed over them in turn.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from autopar.ir.mesh import Mesh
from autopar.ir.placement import Sharding
from autopar.runtime.shards import held

Index = slice | torch.Tensor
Runs = tuple[range, ...]
Tile = tuple[Runs, ...]
"""For each dim, the indices in the global tensor."""


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor: the ranks in mesh order, the mesh, and the sharding (`form`)."""

    ranks: tuple[int, ...]
    mesh: Mesh
    form: Sharding

    def tile(self, place: int, shape: tuple[int, ...]) -> Tile:
        """Return the tile of the global `shape` that the rank at a position of the mesh holds."""
        coordinate = self.mesh.coordinate(place)
        return tuple(
            tuple(
                range(run.start, run.stop)
                for run in held(size, dim, self.form, self.mesh, coordinate)
            )
            for dim, size in enumerate(shape)
        )


@dataclass(frozen=True, eq=False)
class Message:
    """Copies the part `taken` of the source rank's local tensor to `placed` in the target rank's."""

    source: int
    target: int
    taken: tuple[Index, ...]
    placed: tuple[Index, ...]
    shape: tuple[int, ...]

    @property
    def ranks(self) -> tuple[int, int]:
        """Both ends."""
        return self.source, self.target

    def on(self, device: torch.device | str) -> Message:
        """Return the message with its indices on a device, so that no step copies them."""
        taken, placed = (
            tuple(part if isinstance(part, slice) else part.to(device) for part in index)
            for index in (self.taken, self.placed)
        )
        return replace(self, taken=taken, placed=placed)


def messages(shape: tuple[int, ...], source: Layout, target: Layout) -> tuple[Message, ...]:
    """Return all messages that redistribute a tensor of global `shape` from one layout to another."""
    holders: defaultdict[Tile, list[int]] = defaultdict(list)
    for place, rank in enumerate(source.ranks):
        holders[source.tile(place, shape)].append(rank)
    found = []
    for place, rank in enumerate(target.ranks):
        wanted = target.tile(place, shape)
        for tile, ranks in holders.items():
            common = [_common(a, b) for a, b in zip(tile, wanted, strict=True)]
            if all(len(taken) for taken, _ in common):
                giver = rank if rank in ranks else ranks[place % len(ranks)]
                found.append(
                    Message(
                        giver,
                        rank,
                        tuple(_index(taken) for taken, _ in common),
                        tuple(_index(placed) for _, placed in common),
                        tuple(len(taken) for taken, _ in common),
                    )
                )
    return tuple(found)


def cut(local: torch.Tensor, index: tuple[Index, ...]) -> torch.Tensor:
    """Return a box of a local tensor, contiguous."""
    for dim, part in enumerate(index):
        if isinstance(part, slice):
            local = local.narrow(dim, part.start, part.stop - part.start)
        else:
            local = local.index_select(dim, part)
    return local.contiguous()


def paste(local: torch.Tensor, index: tuple[Index, ...], box: torch.Tensor) -> None:
    """Write a box into a local tensor."""
    strided = [dim for dim, part in enumerate(index) if not isinstance(part, slice)]
    for dim, part in enumerate(index):
        if isinstance(part, slice):
            local = local.narrow(dim, part.start, part.stop - part.start)
    if not strided:
        local.copy_(box)
        return
    every = (
        part if isinstance(part, torch.Tensor) else torch.arange(size, device=local.device)
        for part, size in zip(index, local.shape, strict=True)
    )
    local[torch.meshgrid(*every, indexing="ij")] = box


def _common(mine: Runs, theirs: Runs) -> tuple[_Places, _Places]:
    """Return the positions of the common indices in each of the two local tensors."""
    _, taken, placed = np.intersect1d(
        _indices(mine), _indices(theirs), assume_unique=True, return_indices=True
    )
    return taken, placed


def _indices(runs: Runs) -> _Places:
    return np.concatenate([np.arange(run.start, run.stop) for run in runs] or [np.empty(0, int)])


def _index(places: _Places) -> Index:
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places) and bool((np.diff(places) == 1).all()):
        return slice(first, last + 1)
    return torch.from_numpy(places)


_Places = NDArray[np.int_]
