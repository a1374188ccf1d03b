"""The two calls that people make: `plan` decides, `parallelize` decides and builds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autopar import presets
from autopar.capture import ExampleInputs, capture
from autopar.capture.saved import saved
from autopar.compile import Compilation, Settings, compile_graph
from autopar.constraints import Constraint, from_user
from autopar.errors import InputError, MeshError
from autopar.graph import Graph
from autopar.mesh import DEFAULT_NAMES, Mesh
from autopar.plan import Plan
from cost_models.hardware import Hardware, detect, load

MeshLike = Mesh | DeviceMesh | Sequence[int] | int | str
Constraints = dict[str, str | dict[str, str]]


def plan(model: nn.Module, mesh: MeshLike, example_inputs: ExampleInputs | None = None, **options: Any) -> Plan:
    """What `parallelize` would decide, without processes and without weights.

    The model may be on the meta device.  Options are those of `compile_model`.
    """
    return compile_model(model, mesh, example_inputs, **options).plan


def compile_model(
    model: nn.Module,
    mesh: MeshLike,
    example_inputs: ExampleInputs | None = None,
    *,
    loss: Callable[..., Any] | None = None,
    optimizer: type[torch.optim.Optimizer] | str = "AdamW",
    memory_limit: float | None = None,
    hardware: str | Hardware | None = None,
    preset: str | None = None,
    constraints: Constraints | tuple[Constraint, ...] | None = None,
    outputs: Sequence[str] = (),
    train: bool = True,
) -> Compilation:
    """Capture, candidates, prices, solution, plan and source: every stage's output.

    `example_inputs` hold the global batch: a tuple of positional arguments or a dict of keyword
    arguments, targets of `loss` among them.  `memory_limit` is in bytes per device.  `constraints`
    map patterns of names to types (see `autopar.constraints`).
    """
    logical = as_mesh(mesh)
    inputs = example_inputs if example_inputs is not None else offered_inputs(model)
    graph = capture(model, inputs, loss=loss, train=train)
    graph = with_outputs(graph, outputs)
    chosen = (*_preset(preset, logical), *_constraints(constraints, logical))
    settings = Settings(
        optimizer=optimizer if isinstance(optimizer, str) else optimizer.__name__,
        memory_limit=memory_limit,
        preset=preset or "",
        constraints=chosen,
        regather=presets.regathers(preset) if preset else None,
    )
    return compile_graph(graph, logical, as_hardware(hardware), settings, saved(graph))


def as_mesh(mesh: MeshLike) -> Mesh:
    """Read what a user may call a mesh: a Mesh, a DeviceMesh, ``(2, 2)``, ``4`` or ``"2x2"``."""
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, str):
        return Mesh.parse(mesh)
    if isinstance(mesh, DeviceMesh):
        names = mesh.mesh_dim_names or DEFAULT_NAMES[: mesh.ndim]
        return Mesh.of(*mesh.shape, names=tuple(names))
    sizes = (mesh,) if isinstance(mesh, int) else tuple(mesh)
    if not all(isinstance(size, int) for size in sizes):
        raise MeshError(f"A mesh is a Mesh, a DeviceMesh or a shape such as (2, 2), not {mesh!r}.")
    return Mesh.of(*sizes)


def as_hardware(hardware: str | Hardware | None) -> Hardware:
    """A profile by name or path; None asks the machine what it is."""
    if isinstance(hardware, Hardware):
        return hardware
    return load(hardware if hardware is not None else detect())


def offered_inputs(model: nn.Module) -> ExampleInputs:
    """The example inputs that a model brings along, as Hugging Face and Lightning models may."""
    for attribute in ("example_input_array", "dummy_inputs"):
        found = getattr(model, attribute, None)
        if isinstance(found, torch.Tensor):
            return (found,)
        if isinstance(found, (tuple, dict)):
            return found
    arguments = [p for p in inspect.signature(model.forward).parameters if p != "kwargs"]
    raise InputError(
        f"{type(model).__name__} brings no example inputs. Pass example_inputs= with one global "
        f"batch: a dict such as {{{', '.join(f'{a!r}: ...' for a in arguments[:2])}}} or a tuple."
    )


def with_outputs(graph: Graph, wanted: Sequence[str]) -> Graph:
    """The graph with only the outputs that were asked for (all of them where there is no loss)."""
    available = dict(graph.outputs)
    for name in wanted:
        if name not in available:
            raise InputError(f"{graph.name} has no output {name!r}; it has {', '.join(available)}.")
    if graph.loss is None and not wanted:
        return graph
    kept = tuple((path, tensor) for path, tensor in graph.outputs if path in wanted)
    return replace(graph, outputs=kept)


def _preset(name: str | None, mesh: Mesh) -> tuple[Constraint, ...]:
    return presets.load(name, mesh) if name else ()


def _constraints(
    given: Constraints | tuple[Constraint, ...] | None, mesh: Mesh
) -> tuple[Constraint, ...]:
    return given if isinstance(given, tuple) else from_user(given, mesh)
