"""Separate process groups for gradient reductions that overlap with collectives of the backward.

A group runs its collectives one after the other.  On an axis on which the backward itself has
collectives, each of them would wait for all gradient reductions that were started before it.
"""

from __future__ import annotations

from dataclasses import replace

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from autopar.plans.plan import Plan
from autopar.runtime.axes import Axes


def description(axis: str) -> str:
    """Return the description of the group for an axis's gradients."""
    return f"gradients_{axis}"


def beside(axes: Axes, mesh: DeviceMesh, plan: Plan) -> Axes:
    """Return the axes that gradient reductions use; all ranks of the mesh call it.

    New groups are made by all processes together, so a mesh of some of them uses its own groups.
    """
    busy = both_at_once(plan) if mesh.size() == dist.get_world_size() else ()
    own = {name: replace(axes[name], group=_group(mesh, name)) for name in busy}
    return replace(axes, by_name={**axes.by_name, **own})


def both_at_once(plan: Plan) -> tuple[str, ...]:
    """Return the axes on which the backward has collectives and gradients are reduced as well."""
    flows = [flow for flow in plan.estimate.flows if flow.direction == "backward"]
    once, often = (
        {flow.axis for flow in flows if flow.scope == scope} for scope in ("step", "microbatch")
    )
    return tuple(name for name in plan.mesh.names if name in once & often)


def _group(mesh: DeviceMesh, name: str) -> dist.ProcessGroup:
    place = (mesh.mesh_dim_names or ()).index(name)
    lines = mesh.mesh.movedim(place, -1).reshape(-1, mesh.size(place)).tolist()
    key = name, tuple(map(tuple, lines))
    if key not in _MADE or not _is_alive(_MADE[key]):
        mine, _ = dist.new_subgroups_by_enumeration(lines, group_desc=description(name))
        assert mine is not None
        _MADE[key] = mine
    return _MADE[key]


_MADE: dict[tuple[str, tuple[tuple[int, ...], ...]], dist.ProcessGroup] = {}
"""Groups live until all are destroyed, with threads and connections; models on one mesh share them."""


def of_all_ranks(description: str, backend: str | None = None) -> dist.ProcessGroup:
    """Return a group of all ranks that all models share; all ranks call it.

    The backend is that of the default group unless given.
    """
    key = description, (tuple(range(dist.get_world_size())),)
    if key not in _MADE or not _is_alive(_MADE[key]):
        _MADE[key] = dist.new_group(backend=backend, group_desc=description)
    return _MADE[key]


def _is_alive(group: dist.ProcessGroup) -> bool:
    try:
        return bool(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return False
