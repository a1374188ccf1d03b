"""What every rank does to see whether a step of one axis makes a tensor of its own."""

from __future__ import annotations

import torch
import torch.distributed as dist

from autopar.ir.conversion import Step
from autopar.ir.mesh import Mesh
from autopar.ir.placement import S, Sharding, Type
from autopar.runtime.axes import Axis
from autopar.runtime.convert import convert

ROWS, COLUMNS = 8, 6


def taken(source: Type, target: Type) -> None:
    """New storage, in each direction, exactly where the table says that something is sent or copied."""
    mesh = Mesh.of(dist.get_world_size())
    step = Step(0, Sharding((source,)), Sharding((target,)))
    shape = (ROWS, COLUMNS)
    said = {
        each.direction
        for parts in (step.traffic(shape, 4, mesh, True), step.copies(shape, 4, mesh, True))
        for each in parts
    }
    x = torch.ones(_local(source), requires_grad=True)
    world = dist.group.WORLD
    assert world is not None
    axis = Axis("x", world, dist.get_rank(), dist.get_world_size())
    made = convert(x, axis, source, target)
    gradient = torch.ones_like(made)
    (back,) = torch.autograd.grad(made, x, gradient)
    found = {
        direction
        for direction, before, after in (("forward", x, made), ("backward", gradient, back))
        if before.untyped_storage().data_ptr() != after.untyped_storage().data_ptr()
    }
    assert found == said, (found, said)


def _local(kind: Type) -> tuple[int, int]:
    shape = [ROWS, COLUMNS]
    if isinstance(kind, S):
        shape[kind.dim] //= dist.get_world_size()
    return shape[0], shape[1]
