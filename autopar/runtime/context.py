"""The mesh that emitted code runs on; the top module sets it, so that models may use different ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from autopar.errors import MeshError


@dataclass(frozen=True)
class Axis:
    """One mesh axis as this rank sees it."""

    name: str
    group: dist.ProcessGroup
    rank: int
    size: int


@dataclass(frozen=True)
class Axes:
    """The axes of a device mesh, by name."""

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

    def __getitem__(self, name: str) -> Axis:
        if name not in self.by_name:
            raise MeshError(f"There is no mesh axis {name!r}; there are {', '.join(self.by_name)}.")
        return self.by_name[name]


_CURRENT: ContextVar[Axes | None] = ContextVar("axes", default=None)


@contextmanager
def on(axes: Axes) -> Iterator[None]:
    """Run emitted code inside on these axes."""
    token = _CURRENT.set(axes)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def axis(name: str) -> Axis:
    """Return the current mesh's axis of this name."""
    return _current()[name]


def device() -> torch.device:
    """Return the device for tensors that emitted code creates, regardless of torch's default device."""
    return torch.device(_current().device)


def _current() -> Axes:
    axes = _CURRENT.get()
    if axes is None:
        raise MeshError(
            "Emitted code runs inside autopar.parallelize's module, or under `autopar.runtime.on(...)`."
        )
    return axes
