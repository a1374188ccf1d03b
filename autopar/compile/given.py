"""Parses the arguments of the public API: meshes, hardware, example inputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autopar.capture import ExampleInputs
from autopar.errors import InputError, MeshError
from autopar.ir.mesh import DEFAULT_NAMES, Mesh
from autopar.request.options import Options
from autopar.request.views import views
from autopar.utils.messages import argument
from cost_models.errors import CostModelError
from cost_models.hardware import Hardware, detect
from cost_models.hardware import load as load_hardware

MeshLike = Mesh | DeviceMesh | Sequence[int] | Sequence[Mesh] | int | str
"""One mesh, several meshes of the same size to choose from, or a number of devices."""


def as_mesh(mesh: MeshLike) -> Mesh:
    """Convert a Mesh, a DeviceMesh, ``(2, 2)``, ``4`` or ``"2x2"`` to a `Mesh`."""
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, str):
        return Mesh.parse(mesh)
    if isinstance(mesh, DeviceMesh):
        names = mesh.mesh_dim_names or DEFAULT_NAMES[: mesh.ndim]
        return Mesh.of(*mesh.shape, names=tuple(names))
    sizes = (mesh,) if isinstance(mesh, int) else tuple(mesh)
    shape = tuple(size for size in sizes if isinstance(size, int))
    if len(shape) != len(sizes):
        raise MeshError(f"A mesh is a Mesh, a DeviceMesh or a shape such as (2, 2), not {mesh!r}.")
    return Mesh.of(*shape)


def meshes_of(mesh: MeshLike, options: Options) -> tuple[Mesh, ...]:
    """Return the meshes to compare; only one if the user passed a single mesh.

    Constraints and presets refer to mesh axes, so with them a number of devices means one axis.
    """
    if isinstance(mesh, int):
        speaks = options.preset is not None or bool(options.constraints)
        return views(mesh, 1) if speaks else views(mesh)
    if not isinstance(mesh, (Mesh, DeviceMesh, str)):
        several = tuple(each for each in mesh if isinstance(each, Mesh))
        if several and len(several) == len(mesh):
            return _same_devices(several)
    return (as_mesh(mesh),)


def _same_devices(meshes: tuple[Mesh, ...]) -> tuple[Mesh, ...]:
    first = meshes[0]
    for mesh in meshes:
        if mesh.world_size != first.world_size:
            raise MeshError(
                f"Meshes to choose from are of the same devices: {first} has {first.world_size}, "
                f"{mesh} has {mesh.world_size}."
            )
    return meshes


def as_hardware(hardware: str | Hardware | None) -> Hardware:
    """Load a hardware profile by name or path; None detects this machine."""
    if isinstance(hardware, Hardware):
        return hardware
    try:
        return load_hardware(hardware if hardware is not None else detect())
    except CostModelError as error:
        raise InputError(str(error)) from error


def offered_inputs(model: nn.Module) -> ExampleInputs:
    """Return the model's own example inputs, which Hugging Face and Lightning models may have.

    Raise `InputError` if there are none.
    """
    for attribute in ("example_input_array", "dummy_inputs"):
        found = getattr(model, attribute, None)
        if isinstance(found, torch.Tensor):
            return (found,)
        if isinstance(found, (tuple, dict)):
            return found
    arguments = [p for p in inspect.signature(model.forward).parameters if p != "kwargs"]
    raise InputError(
        f"{type(model).__name__} brings no example inputs. Pass {argument('example_inputs')} with one "
        f"global batch: a dict such as {{{', '.join(f'{a!r}: ...' for a in arguments[:2])}}} or a tuple."
    )


def as_call(inputs: ExampleInputs) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return example inputs as positional and keyword arguments."""
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), inputs
    return tuple(inputs), {}
