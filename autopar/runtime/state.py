"""Creates the DTensors at rest for a model's tensors, laid out by the plan; values are filled later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.pads import padded_shape
from autopar.ir.placement import I, Sharding
from autopar.plans.decisions import ParameterPlan, reduces_low
from autopar.plans.hops import hops
from autopar.plans.plan import Plan
from autopar.runtime import _torch
from autopar.runtime.padded_layout import PaddedLayout
from autopar.runtime.shard_layout import ShardLayout
from autopar.runtime.sharded_parameter import ShardedParameter
from autopar.runtime.shards import held, placements
from autopar.runtime.weights.target import Target


def slots(
    model: nn.Module, plan: Plan, graph: Graph, device_mesh: DeviceMesh
) -> Iterator[ShardedParameter]:
    """Yield one empty slot per parameter; tied parameters have one slot."""
    dtypes = {node.target: node.outputs[0].dtype for node in graph.leaves("parameter")}
    for name, parameter in model.named_parameters():
        yield slot(
            parameter, entry_of(name, plan), dtypes.get(name), plan.mesh, device_mesh,
            reduces_low(plan.precision),
        )  # fmt: skip


def slot(
    parameter: nn.Parameter,
    entry: ParameterPlan,
    dtype: str | None,
    mesh: Mesh,
    device_mesh: DeviceMesh,
    sums_low: bool = False,
) -> ShardedParameter:
    """Return the empty slot of one parameter.

    `dtype`: that of its leaf, None for its own.  `sums_low`: gradients are summed in it.
    """
    shape, coordinate = tuple(parameter.shape), tuple(device_mesh.get_coordinate() or ())
    runs = _held(shape, entry.stored, mesh, coordinate)
    local = torch.empty(
        [sum(run.stop - run.start for run in of_dim) for of_dim in runs],
        dtype=parameter.dtype,
        device=device_mesh.device_type,
    )
    layout = _torch.spec(device_mesh, placements(entry.stored, mesh), parameter)
    stored = nn.Parameter(_torch.dtensor(local, layout), requires_grad=parameter.requires_grad)
    in_step = padded_shape(shape, entry.pads)
    return ShardedParameter(
        entry.name,
        stored,
        entry.leaf.local_shape(in_step, mesh),
        parameter.dtype if dtype is None else getattr(torch, dtype),
        hops(entry, mesh),
        ShardLayout.of(entry, in_step, mesh),
        PaddedLayout.of(shape, entry.pads, entry.stored, mesh, coordinate),
        sums_low,
    )


def buffers(model: nn.Module, device_mesh: DeviceMesh) -> dict[str, torch.Tensor]:
    """Return empty tensors for the model's buffers, unsharded, on this rank's device."""
    device = device_mesh.device_type
    return {name: torch.empty_like(b, device=device) for name, b in model.named_buffers()}


def targets(
    held_slots: Iterable[ShardedParameter],
    held_buffers: Mapping[str, torch.Tensor],
    plan: Plan,
    device_mesh: DeviceMesh,
) -> dict[str, Target]:
    """Return the tensors to fill on this rank: its part of every parameter, and every whole buffer."""
    mesh, coordinate = plan.mesh, tuple(device_mesh.get_coordinate() or ())
    found = {}
    for slot in held_slots:
        stored = entry_of(slot.name, plan).stored
        runs = _held(tuple(slot.parameter.shape), stored, mesh, coordinate)
        found[slot.name] = Target(slot.name, slot.parameter, runs)
    for name, buffer in held_buffers.items():
        found[name] = Target(name, buffer, tuple((slice(0, size),) for size in buffer.shape))
    return found


def _held(
    shape: tuple[int, ...], stored: Sharding, mesh: Mesh, coordinate: tuple[int, ...]
) -> tuple[tuple[slice, ...], ...]:
    """Return the indices of every dim that this rank holds, as runs."""
    return tuple(held(size, dim, stored, mesh, coordinate) for dim, size in enumerate(shape))


def entry_of(name: str, plan: Plan) -> ParameterPlan:
    """Return a parameter's layout; one that forward never reads is replicated."""
    whole = Sharding.all(I, plan.mesh)
    return plan.parameter.get(name) or ParameterPlan(name, whole, whole)


def from_first_rank(tensor: torch.Tensor, device_mesh: DeviceMesh) -> torch.Tensor:
    """Broadcast rank 0's values into a new tensor on this rank's device; `tensor` is unchanged."""
    values = tensor.to(device_mesh.device_type).contiguous()
    return sent(values.clone() if values.data_ptr() == tensor.data_ptr() else values, device_mesh)


def sent(tensor: torch.Tensor, device_mesh: DeviceMesh) -> torch.Tensor:
    """Broadcast rank 0's values to this rank's device, in place if `tensor` is already there."""
    values = tensor.to(device_mesh.device_type).contiguous()
    if dist.get_world_size() > 1:
        dist.broadcast(values, src=0)
    return values
