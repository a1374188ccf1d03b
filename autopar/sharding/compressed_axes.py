"""Refuses a compression of gradients that compresses nothing, or not on an axis that it names."""

from __future__ import annotations

from autopar.errors import InputError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.plans.compressed_messages import compressed_hops
from autopar.plans.hops import hops
from autopar.plans.plan import Plan
from autopar.request.compression import Compression
from autopar.utils.messages import argument


def check_axes(compression: Compression | None, mesh: Mesh) -> None:
    """Raise `InputError` if the compression names an axis that the mesh lacks."""
    for name in () if compression is None else compression.axes:
        if name not in mesh.names:
            raise InputError(
                f"{argument('compression', str(compression))} names mesh axis {name!r}, but the mesh "
                f"({mesh}) has {', '.join(mesh.names)}."
            )


def check_compressed(plan: Plan, graph: Graph) -> None:
    """Raise `InputError` if gradients travel over no axis, or not over a named one, compressed."""
    compression, mesh = plan.compression, plan.mesh
    if compression is None or mesh.world_size == 1:
        return
    found = compressed_axes(plan, graph)
    missing = sorted(set(compression.axes) - found)
    if found and not missing:
        return
    where = f" over mesh axis {missing[0]!r}" if missing else ""
    raise InputError(
        f"{argument('compression', str(compression))} compresses nothing{where}: the plan of "
        f"{graph.name} on mesh ({mesh}) sums no gradient there once per step that is large enough. "
        "Gradients are compressed where weights are whole during the step, as under "
        f"{argument('preset', 'ddp')} or {argument('preset', 'zero2')}; leave it out for other plans."
    )


def compressed_axes(plan: Plan, graph: Graph) -> set[str]:
    """Return the axes over which some gradient travels compressed."""
    shape = {node.target: node.outputs[0].shape for node in graph.leaves("parameter")}
    return {
        at.hop.axis
        for each in plan.parameters
        for at in compressed_hops(
            hops(each, plan.mesh),
            each.stored.local_shape(shape[each.name], plan.mesh),
            plan.compression,
        )
    }
