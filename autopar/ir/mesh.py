"""The device mesh: named axes of devices.  Imports only `autopar.errors`, so any module can use it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from autopar.errors import MeshError
from autopar.utils.identifiers import is_identifier

DEFAULT_NAMES = ("x", "y", "z", "w")
MOST_DEVICES = 2**20
"""More than any cluster has; lists of ranks of larger meshes would exhaust memory."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One mesh axis: a name and the number of devices along it."""

    name: str
    size: int


@dataclass(frozen=True)
class Mesh:
    """Devices in a row-major grid; the first axis varies slowest (axes between hosts come first).

    The printed form, ``node=2, gpu=4``, can be parsed again; ``2x4`` is parsed with default names.
    """

    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise `MeshError` unless the mesh is valid.

        It has at least one axis and at most `MOST_DEVICES` devices, names are distinct identifiers, and
        sizes are at least one.
        """
        if not self.axes:
            raise MeshError("A mesh needs at least one axis; write e.g. autopar.Mesh.of(2, 2).")
        names = [axis.name for axis in self.axes]
        for axis in self.axes:
            if not is_identifier(axis.name):
                raise MeshError(f"Mesh axis name {axis.name!r} is not a Python identifier.")
            if axis.size < 1:
                raise MeshError(f"Mesh axis {axis.name!r} has size {axis.size}; sizes start at 1.")
        if len(set(names)) != len(names):
            raise MeshError(f"Mesh axis names must differ, got {', '.join(names)}.")
        if self.world_size > MOST_DEVICES:
            raise MeshError(
                f"The mesh ({self}) has {self.world_size} devices; autopar plans for {MOST_DEVICES} at "
                "most."
            )

    @classmethod
    def of(cls, *sizes: int, names: tuple[str, ...] | None = None) -> Mesh:
        """Return a mesh of these sizes; axes are called x, y, z, w unless `names` is given."""
        if names is None:
            if len(sizes) > len(DEFAULT_NAMES):
                raise MeshError(f"A mesh of {len(sizes)} axes needs explicit names.")
            names = DEFAULT_NAMES[: len(sizes)]
        if len(names) != len(sizes):
            raise MeshError(f"{len(sizes)} mesh sizes but {len(names)} names: {sizes} and {names}.")
        return cls(tuple(Axis(name, size) for name, size in zip(names, sizes, strict=True)))

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read ``2x4`` or ``node=2, gpu=4``."""
        compact = text.replace(" ", "")
        if re.fullmatch(r"\d+(x\d+)*", compact):
            return cls.of(*(int(size) for size in compact.split("x")))
        parts = [re.fullmatch(r"(\w+)=(\d+)", part) for part in compact.split(",")]
        if not all(parts):
            raise MeshError(f"Cannot read the mesh {text!r}; write 2x4 or node=2,gpu=4.")
        return cls(tuple(Axis(part[1], int(part[2])) for part in parts if part))

    def __str__(self) -> str:
        return ", ".join(f"{axis.name}={axis.size}" for axis in self.axes)

    def __iter__(self) -> Iterator[Axis]:
        return iter(self.axes)

    def __len__(self) -> int:
        return len(self.axes)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @property
    def world_size(self) -> int:
        """Number of devices."""
        return math.prod(self.sizes)

    def index(self, name: str) -> int:
        """Return the index of the axis called `name`; raise `MeshError` if there is none."""
        if name not in self.names:
            raise MeshError(f"The mesh ({self}) has no axis {name!r}.")
        return self.names.index(name)

    def stride(self, axis: int) -> int:
        """Return the distance in ranks between neighbours along an axis (row-major)."""
        return math.prod(self.sizes[axis + 1 :])

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """Return the coordinate of a rank on every axis."""
        return tuple(rank // self.stride(i) % size for i, size in enumerate(self.sizes))
