"""Data parallelism: `DistributedDataParallel`, and `fully_shard` (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from contender import Contender, Place, Setting, share_of, whole
from models import Batch, Model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

BUCKETS_MB = (1, 4, 25, 1000)
"""25 is what people get without asking."""


def settings(place: Place) -> Iterator[Setting]:
    """What is tried."""
    for megabytes in BUCKETS_MB:
        yield Setting("DDP", f"buckets of {megabytes} MB", partial(ddp, bucket_mb=megabytes))
    yield Setting("DDP", "2 microbatches, no_sync", partial(ddp, bucket_mb=25, pieces=2))
    for again in (True, False):
        said = "resharded after forward" if again else "kept after forward"
        yield Setting("FSDP2", f"by block, {said}", partial(fsdp, reshard=again))
    yield Setting("FSDP2", "one group", partial(fsdp, reshard=False, by_block=False))
    if len(place.sizes) > 1:
        yield Setting(
            "FSDP2", "HSDP, one group", partial(fsdp, reshard=False, by_block=False, hybrid=True)
        )


def ddp(model: Model, place: Place, *, bucket_mb: float, pieces: int = 1) -> Contender:
    """Replicas; with `pieces`, gradients of microbatches add up before they are synchronised."""
    module = DistributedDataParallel(
        model.make(), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True,
        static_graph=pieces == 1,
    )  # fmt: skip
    rank = dist.get_rank()

    def step(batch: Batch) -> torch.Tensor:
        mine = share_of(batch, rank, place.ranks)
        total = torch.zeros(())
        for piece in range(pieces):
            with nullcontext() if piece == pieces - 1 else module.no_sync():
                loss = module(**share_of(mine, piece, pieces)).loss / pieces
                loss.backward()
            total += loss.detach()
        return total

    names = module.module.named_parameters
    return Contender(step, list(module.parameters()), lambda: dict(names()))


def fsdp(
    model: Model, place: Place, *, reshard: bool, by_block: bool = True, hybrid: bool = False
) -> Contender:
    """Shards gathered for each block, or all at once; `hybrid`: in racks, replicated across."""
    module = model.make()
    shape = place.mesh if hybrid else (place.ranks,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("across", "inside")[-len(shape) :])
    if by_block:
        for layer in model.layers_of(module):
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(module, mesh=mesh, reshard_after_forward=reshard)
    return replicas(module, dist.get_rank(), place.ranks)


def replicas(module: nn.Module, part: int, parts: int) -> Contender:
    """A module of `fully_shard`, of which this rank trains the given part of the batch."""
    for each in module.modules():
        if isinstance(each, FSDPModule):
            each.set_force_sum_reduction_for_comms(True)  # gloo knows no average

    def step(batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = module(**share_of(batch, part, parts)).loss
        loss.backward()
        return loss.detach()

    return Contender(step, list(module.parameters()), lambda: whole(module.named_parameters()))
