"""What every rank does to move a split from one dim to another."""

from __future__ import annotations

import torch
import torch.distributed as dist

from autopar.ir.placement import S
from autopar.runtime.axes import Axis
from autopar.runtime.convert import convert


def exchanged(source: int, target: int) -> None:
    """The value is this rank's part of the whole, and so is the gradient."""
    world, rank, ranks = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    assert world is not None
    every = [
        torch.randn(6, 12, 6, generator=torch.Generator().manual_seed(r), dtype=torch.float64)
        for r in range(ranks)
    ]
    leaf = every[rank].clone().requires_grad_()
    made = convert(leaf, Axis("x", world, rank, ranks), S(source), S(target))
    made.square().sum().backward()
    assert torch.equal(made.detach(), torch.cat(every, source).chunk(ranks, target)[rank])
    assert torch.equal(leaf.grad, 2 * every[rank])
