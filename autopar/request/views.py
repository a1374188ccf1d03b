"""Enumerates the meshes that a number of devices can form."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.errors import MeshError
from autopar.ir.mesh import Mesh

MOST_AXES = 2
"""The number of candidates grows steeply: with three axes, large models take half a minute a mesh."""


def views(devices: int, most_axes: int = MOST_AXES) -> tuple[Mesh, ...]:
    """Return all row-major meshes of `devices` devices with up to `most_axes` axes, fewest first."""
    if devices < 1:
        raise MeshError(f"{devices} devices cannot train; pass at least one.")
    Mesh.of(devices)  # refuses too many devices before they are factorised
    found = [sizes for count in range(1, most_axes + 1) for sizes in _factors(devices, count)]
    return tuple(Mesh.of(*sizes) for sizes in found or [(1,)])


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield the ordered factorisations into `count` factors greater than one."""
    if count == 1:
        if number > 1:
            yield (number,)
        return
    for first in range(2, number):
        if number % first == 0:
            yield from ((first, *rest) for rest in _factors(number // first, count - 1))
