"""Tensor parallelism with DTensor: `parallelize_module`, by plans that a person would write.

Every block is split as in Megatron-LM: heads of attention and rows of the inner products, with one
all-reduce after each.  Across racks, or beside it, the batch is split by `fully_shard`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch.distributed as dist
from contender import Contender, Place, Setting
from data import replicas
from models import Model
from tensor_plans import PLANS
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module


def settings(place: Place) -> Iterator[Setting]:
    """What is tried."""
    yield Setting("tensor", f"{place.ranks} ways", partial(tensor, ways=place.ranks))
    if len(place.sizes) > 1:
        inside = place.sizes[0]
        name = f"{inside} ways in racks, FSDP2 across"
        yield Setting("tensor", name, partial(tensor, ways=inside))


def tensor(model: Model, place: Place, *, ways: int) -> Contender:
    """Split so many ways; what ranks are left take parts of the batch."""
    plan = PLANS[model.name]
    module = model.make()
    parts = place.ranks // ways
    mesh = init_device_mesh("cpu", (parts, ways), mesh_dim_names=("data", "tensor"))
    plan.prepare(module, ways)
    for layer in model.layers_of(module):
        parallelize_module(layer, mesh["tensor"], plan.of_layer(layer))
    part = dist.get_rank() // ways
    if parts > 1:
        for layer in model.layers_of(module):
            fully_shard(layer, mesh=mesh["data"], reshard_after_forward=False)
        fully_shard(module, mesh=mesh["data"], reshard_after_forward=False)
    made = replicas(module, part, parts)

    return Contender(made.step, made.parameters, lambda: plan.restored(dict(made.weights()), ways))
