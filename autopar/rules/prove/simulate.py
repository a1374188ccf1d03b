"""Simulates ranks in one process: converts a whole tensor to local parts by type, and back.

`scatter` and `gather` define the types' meaning in code, independently of the runtime.
"""

from __future__ import annotations

import math

import torch

from autopar.ir.mesh import Mesh
from autopar.ir.placement import P, R, S, Sharding, Type

TOLERANCE = 1e-9


class WrongError(Exception):
    """A proof failed: the ranks' tensors contradict their types."""


def dual(sharding: Sharding) -> Sharding:
    """Return the sharding of a tensor's gradient: replicated becomes partial and vice versa."""
    swapped: dict[Type, Type] = {R: P, P: R}
    return Sharding(tuple(swapped.get(kind, kind) for kind in sharding))


def scatter(
    whole: torch.Tensor, sharding: Sharding, mesh: Mesh, generator: torch.Generator
) -> list[torch.Tensor]:
    """Return every rank's local tensor; partial ones are random summands."""
    parts: dict[tuple[tuple[int, int], ...], torch.Tensor] = {(): whole}
    for axis in _inside_out(sharding):
        parts = {
            (*taken, (axis, index)): piece
            for taken, value in parts.items()
            for index, piece in enumerate(
                _pieces(value, sharding[axis], mesh.sizes[axis], generator)
            )
        }
    by_coordinate = {tuple(sorted(taken)): value for taken, value in parts.items()}
    return [by_coordinate[_key(rank, mesh)] for rank in range(mesh.world_size)]


def gather(
    parts: list[torch.Tensor], shape: tuple[int, ...], sharding: Sharding, mesh: Mesh
) -> torch.Tensor:
    """Return the whole tensor; raise `WrongError` if local shapes are wrong or replicas differ."""
    local = sharding.local_shape(shape, mesh)
    for part in parts:
        if tuple(part.shape) != local:
            raise WrongError(f"local shape {tuple(part.shape)} instead of {local}")
    held = {_key(rank, mesh): part for rank, part in enumerate(parts)}
    for axis in reversed(_inside_out(sharding)):
        groups: dict[tuple[tuple[int, int], ...], list[torch.Tensor]] = {}
        for taken, value in sorted(held.items()):
            rest = tuple(place for place in taken if place[0] != axis)
            groups.setdefault(rest, []).append(value)
        held = {rest: _joined(values, sharding[axis]) for rest, values in groups.items()}
    return held[()]


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the error relative to the largest entry or one; infinite if not comparable."""
    if got.shape != want.shape:
        return math.inf
    if not (got.is_floating_point() and want.is_floating_point()):
        return 0.0 if torch.equal(got, want) else math.inf
    if not want.numel():
        return 0.0
    largest = float((got - want).abs().max() / want.abs().max().clamp(min=1.0))
    return math.inf if math.isnan(largest) else largest


def _inside_out(sharding: Sharding) -> list[int]:
    """Order the axes so that each split's blocks are not yet split by another."""
    return sorted(
        range(len(sharding)), key=lambda a: -(k.of if isinstance(k := sharding[a], S) else 0)
    )


def _key(rank: int, mesh: Mesh) -> tuple[tuple[int, int], ...]:
    return tuple(enumerate(mesh.coordinate(rank)))


def _pieces(
    value: torch.Tensor, kind: Type, count: int, generator: torch.Generator
) -> list[torch.Tensor]:
    if isinstance(kind, S):
        blocks = value.unflatten(kind.dim, (kind.of, count, -1)).unbind(kind.dim + 1)
        return [block.flatten(kind.dim, kind.dim + 1) for block in blocks]
    if kind is P:
        parts = [_noise(value, generator) for _ in range(count - 1)]
        return [*parts, value - sum(parts)]
    return [value] * count


def _noise(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if like.dtype == torch.bool:
        raise WrongError("a boolean tensor has no parts that add up to it")
    if like.is_floating_point():
        return torch.randn(like.shape, generator=generator, dtype=like.dtype)
    return torch.randint(-9, 9, like.shape, generator=generator, dtype=like.dtype)


def _joined(values: list[torch.Tensor], kind: Type) -> torch.Tensor:
    if isinstance(kind, S):
        blocks = [value.unflatten(kind.dim, (kind.of, -1)) for value in values]
        return torch.cat(blocks, kind.dim + 1).flatten(kind.dim, kind.dim + 1)
    if kind is P:
        if values[0].dtype == torch.bool:
            raise WrongError("a boolean tensor cannot be summed over ranks")
        return torch.stack(values).sum(0, dtype=values[0].dtype)
    for other in values[1:]:
        if not error(other, values[0]) <= TOLERANCE:
            raise WrongError(f"ranks differ by {error(other, values[0]):.1e} where type is {kind}")
    return values[0]
