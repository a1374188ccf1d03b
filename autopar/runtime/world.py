"""Joins the processes that torchrun started into a device mesh of the requested size."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from autopar.errors import MeshError, RankFailedError
from autopar.ir.mesh import DEFAULT_NAMES, Mesh
from autopar.runtime import _torch, launch, limits


def device_mesh(mesh: Mesh | DeviceMesh) -> DeviceMesh:
    """Return the device mesh over all processes; axis names are those of `mesh`, or x, y, z, w."""
    if isinstance(mesh, DeviceMesh):
        _refuse_part(mesh)
        return _named(mesh)
    join(mesh.world_size)
    return _mesh_of(device_type(), range(mesh.world_size), mesh.sizes, mesh.names)


def worker_mesh(ranks: Sequence[int], mesh: Mesh) -> DeviceMesh:
    """Return the device mesh of some of the processes; all processes have to call it."""
    return _mesh_of(device_type(), ranks, mesh.sizes, mesh.names)


_Key = tuple[str, tuple[int, ...], tuple[int, ...], tuple[str, ...]]
_MADE: dict[_Key, tuple[weakref.ref[dist.ProcessGroup], DeviceMesh]] = {}
"""Each mesh with the default group of its time.  Models on one mesh share its groups: each group has
threads and connections for as long as the default group lives."""


def _mesh_of(
    device: str, ranks: Iterable[int], sizes: tuple[int, ...], names: tuple[str, ...]
) -> DeviceMesh:
    """Return the only device mesh of these ranks with these axes."""
    key = device, tuple(ranks), sizes, names
    world = dist.distributed_c10d.GroupMember.WORLD
    assert world is not None
    found = _MADE.get(key)
    if found is None or found[0]() is not world:
        grid = torch.tensor(key[1]).reshape(sizes)
        found = weakref.ref(world), DeviceMesh(device, grid, mesh_dim_names=names)
        _MADE[key] = found
    return found[1]


def device_type() -> str:
    """Return the type of this machine's accelerator if the default group has a backend made for it.

    A group may have a backend per device, as ``init_process_group()`` without a backend makes it.  Gloo
    takes tensors of GPUs too; a job on gloo alone runs on CPUs unless its device mesh says otherwise.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return "cpu"
    by_device = (pair.split(":") for pair in dist.get_backend_config().split(","))
    backend = dict(by_device).get(accelerator.type, "gloo")
    return "cpu" if backend == "gloo" else accelerator.type


class OwnGroup:
    """The default group that a module was made with: its collectives need that group to exist."""

    def __init__(self) -> None:
        world = dist.group.WORLD
        self._world = None if world is None or world.size() == 1 else weakref.ref(world)

    def refuse_destroyed(self) -> None:
        """Raise `MeshError` if the group was destroyed, whether or not there is another now."""
        if self._world is None or self._world() is dist.group.WORLD is not None:
            return
        raise MeshError(
            "The process group that this parallel model was made with was destroyed "
            "(destroy_process_group). Call its save or full_state_dict before that; after the "
            "next init_process_group, call autopar.parallelize again and load the checkpoint."
        )


def join(devices: int) -> None:
    """Initialise the default group from torchrun's environment, unless it exists.

    Raises `MeshError` unless there is one process per device.
    """
    if not dist.is_initialized():
        _initialise(devices)
    size = dist.get_world_size()
    if devices != size:
        raise MeshError(
            f"The mesh has {devices} devices, but {size} processes were started. Start with torchrun "
            f"--nproc-per-node {devices}, or pass a mesh of {size}."
        )


def _initialise(devices: int) -> None:
    if "RANK" not in os.environ and devices == 1:  # a notebook, or a plain script
        dist.init_process_group("gloo", store=_torch.HashStore(), rank=0, world_size=1)
        return
    if "RANK" not in os.environ:
        raise MeshError(
            "There are no processes to run on. Start the script with torchrun, e.g. "
            "torchrun --standalone --nproc-per-node 4 train.py, or use autopar.plan, which needs none."
        )
    gpu = _own_gpu()
    timeout = timedelta(seconds=limits.timeout_s())
    try:
        store, rank, size = next(_torch.rendezvous("env://", timeout=timeout))
        dist.init_process_group(
            "gloo" if gpu is None else "nccl", timeout=timeout, rank=rank, world_size=size,
            store=launch.fresh(store, rank, size), device_id=gpu,
        )  # fmt: skip
    except RuntimeError as error:
        first = str(error).strip().partition("\n")[0]
        raise RankFailedError(
            f"The {os.environ.get('WORLD_SIZE', '?')} processes that were started did not all "
            f"call autopar: {first} Is autopar.parallelize called on some ranks only? Call it on "
            "every rank. AUTOPAR_TIMEOUT_S sets how long ranks wait."
        ) from error


def _own_gpu() -> torch.device | None:
    """Make the GPU with the number of this process the current one; None on a machine without.

    Some launchers show each process its own GPU alone, as number 0.  Given to ``init_process_group``,
    the device lets NCCL connect at once, in the same order on all ranks.
    """
    if not torch.cuda.is_available():
        return None
    here = int(os.environ.get("LOCAL_RANK", "0"))
    gpu = torch.device("cuda", here if torch.cuda.device_count() > 1 else 0)
    torch.cuda.set_device(gpu)
    return gpu


def _refuse_part(mesh: DeviceMesh) -> None:
    """Raise `MeshError` for a mesh of some of the processes: checks would wait for the others."""
    size = dist.get_world_size()
    if mesh.size() != size:
        raise MeshError(
            f"The mesh has {mesh.size()} of the {size} processes of this launch, and autopar needs all "
            f"of them. Start a launch of {mesh.size()} processes for this model, or pass a mesh of all "
            f"{size}."
        )


def _named(mesh: DeviceMesh) -> DeviceMesh:
    if mesh.mesh_dim_names is not None:
        return mesh
    ranks = map(int, mesh.mesh.flatten())
    return _mesh_of(mesh.device_type, ranks, tuple(mesh.shape), DEFAULT_NAMES[: mesh.ndim])
