"""Enumerates the submeshes that stages may have, and the logical meshes of each.

Sizes are powers of two within a host, powers of two of whole hosts, and all devices.  A logical mesh
has one axis or two.  On several hosts the second axis lies within a host.
"""

from __future__ import annotations

from dataclasses import dataclass

from autopar.ir.mesh import Mesh

MOST_PARTS = 64
"""The smallest submesh has at least 1 / `MOST_PARTS` of all devices."""
INNER = 2
"""On several hosts: how many sizes of the second axis are considered, the largest first."""


@dataclass(frozen=True)
class Shape:
    """A submesh of `devices` devices on each of `hosts` hosts, and its logical meshes."""

    hosts: int
    devices: int
    meshes: tuple[Mesh, ...]

    @property
    def size(self) -> int:
        """The total number of devices."""
        return self.hosts * self.devices


def shapes(whole: Mesh, per_host: int) -> tuple[Shape, ...]:
    """Return the submeshes of a mesh, the smallest first; that of all devices includes `whole`."""
    devices = whole.world_size
    least = max(1, -(-devices // MOST_PARTS))
    inside = [2**k for k in range(per_host.bit_length()) if 2**k <= min(per_host, devices)]
    hosts = devices // per_host if devices % per_host == 0 else 0
    across = [2**k * per_host for k in range(1, hosts.bit_length()) if 2**k <= hosts]
    sizes = sorted({n for n in (*inside, *across, devices) if least <= n <= devices})
    return tuple(_shape(size, whole, per_host) for size in sizes)


def _shape(size: int, whole: Mesh, per_host: int) -> Shape:
    crosses = size > per_host and size % per_host == 0
    meshes = list(_across(size, per_host) if crosses else _inside(size))
    if size == whole.world_size:
        meshes.append(whole)
    known = {mesh.sizes: mesh for mesh in meshes}
    hosts = size // per_host if crosses else 1
    return Shape(hosts, size // hosts, tuple(known.values()))


def _inside(size: int) -> list[Mesh]:
    outer = [n for n in range(2, size) if size % n == 0]
    return [Mesh.of(size), *(Mesh.of(n, size // n) for n in outer)]


def _across(size: int, per_host: int) -> list[Mesh]:
    inner = [n for n in range(per_host, 1, -1) if per_host % n == 0][:INNER]
    return [Mesh.of(size), *(Mesh.of(size // n, n) for n in inner)]
