"""From a model's tensors to stored DTensors: rank 0's weights, cut as the plan says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autopar.errors import InputError
from autopar.graph import Graph
from autopar.mesh import Mesh
from autopar.placement import I, Sharding
from autopar.plan import ParameterPlan, Plan
from autopar.runtime import _torch
from autopar.runtime.pieces import Pieces, hops
from autopar.runtime.shards import own_part, placements
from autopar.runtime.slots import Slot


class Container(nn.Module):
    """One level of the user's names; holds parameters and buffers, computes nothing."""


def slots(model: nn.Module, plan: Plan, graph: Graph, device_mesh: DeviceMesh) -> Iterator[Slot]:
    """One slot per parameter, tied ones once; values are those of rank 0."""
    mesh = plan.mesh
    dtypes = {node.target: node.outputs[0].dtype for node in graph.leaves("parameter")}
    coordinate = tuple(device_mesh.get_coordinate() or ())
    for name, parameter in model.named_parameters():
        entry = plan.parameter.get(name) or _unused(name, mesh)
        whole = from_first_rank(parameter.detach(), device_mesh)
        local = own_part(whole, entry.stored, mesh, coordinate)
        layout = _torch.spec(device_mesh, placements(entry.stored, mesh), parameter)
        stored = nn.Parameter(_torch.dtensor(local, layout), requires_grad=parameter.requires_grad)
        shape = tuple(parameter.shape)
        yield Slot(
            name,
            stored,
            entry.leaf.local_shape(shape, mesh),
            getattr(torch, dtypes[name]) if name in dtypes else parameter.dtype,
            hops(entry, mesh),
            Pieces.of(entry, shape, mesh),
        )


def _unused(name: str, mesh: Mesh) -> ParameterPlan:
    """A parameter that forward never reads is kept whole."""
    whole = Sharding.all(I, mesh)
    return ParameterPlan(name, whole, whole)


def from_first_rank(tensor: torch.Tensor, device_mesh: DeviceMesh) -> torch.Tensor:
    """Rank 0's values on this rank's device."""
    if tensor.is_meta:
        raise InputError(
            "The model has no weights: it is on the meta device. Call model.to_empty(device='cpu') "
            "and initialise or load it before autopar.parallelize; autopar.plan needs no weights."
        )
    values = tensor.to(device_mesh.device_type).contiguous()
    values = values.clone() if values.data_ptr() == tensor.data_ptr() else values
    if dist.get_world_size() > 1:
        dist.broadcast(values, src=0)
    return values


def register(root: nn.Module, names: Mapping[str, torch.Tensor], persistent: set[str]) -> None:
    """Put parameters and buffers below `root` under their dotted names."""
    for name, tensor in names.items():
        *path, last = name.split(".")
        here = root
        for step in path:
            here = here._modules.setdefault(step, Container())  # type: ignore[assignment]
        if isinstance(tensor, nn.Parameter):
            here._parameters[last] = tensor
        else:
            here._buffers[last] = tensor
            if name not in persistent:
                here._non_persistent_buffers_set.add(last)
