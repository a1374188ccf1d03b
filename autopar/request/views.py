"""Logical views of some devices: the meshes that they may be seen as, from one axis to several."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.errors import MeshError
from autopar.ir.mesh import Mesh

MOST_AXES = 2
"""More axes make many more candidates: with three, large models take half a minute a mesh."""


def views(devices: int, most_axes: int = MOST_AXES) -> tuple[Mesh, ...]:
    """All row-major meshes of so many devices with up to `most_axes` axes, the fewest axes first."""
    if devices < 1:
        raise MeshError(f"{devices} devices cannot train; pass at least one.")
    Mesh.of(devices)  # so many are refused before their factors are sought
    found = [sizes for count in range(1, most_axes + 1) for sizes in _factors(devices, count)]
    return tuple(Mesh.of(*sizes) for sizes in found or [(1,)])


def _factors(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Ordered factorisations into `count` factors, none of which is one."""
    if count == 1:
        if number > 1:
            yield (number,)
        return
    for first in range(2, number):
        if number % first == 0:
            yield from ((first, *rest) for rest in _factors(number // first, count - 1))
