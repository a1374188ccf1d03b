"""The axes of a device mesh as one rank sees them; emitted modules have them as attributes."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from autopar.errors import MeshError


@dataclass(frozen=True)
class Axis:
    """One mesh axis: its process group, and this rank's place among the `size` ranks along it."""

    name: str
    group: dist.ProcessGroup
    rank: int
    size: int

    @property
    def group_name(self) -> str:
        """The group's name, by which operators in compiled graphs find it."""
        return self.group.group_name


@dataclass(frozen=True)
class Axes:
    """The axes of a device mesh, by name: ``axes["x"]``, ``axes.x``."""

    by_name: dict[str, Axis]
    device: str = "cpu"
    """Device type of the mesh."""

    @classmethod
    def of(cls, mesh: DeviceMesh) -> Axes:
        """Read the groups and this rank's coordinates from a device mesh."""
        names = mesh.mesh_dim_names or ()
        return cls(
            {
                name: Axis(name, mesh.get_group(name), mesh.get_local_rank(name), mesh.size(i))
                for i, name in enumerate(names)
            },
            mesh.device_type,
        )

    def __getattr__(self, name: str) -> Axis:
        if name.startswith("__") or name not in self.by_name:
            raise AttributeError(name)
        return self.by_name[name]

    def __getitem__(self, name: str) -> Axis:
        if name not in self.by_name:
            raise MeshError(f"There is no mesh axis {name!r}; there are {', '.join(self.by_name)}.")
        return self.by_name[name]
