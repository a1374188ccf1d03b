"""What a long run leaves behind: keys in the store, threads, open files, objects that nobody holds."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import autopar
from autopar.errors import MeshError
from autopar.runtime import _torch, agreement
from tests import models


def made(preset: str) -> Any:
    model, batch, loss = models.mlp()
    return autopar.parallelize(model, dist.get_world_size(), batch, loss=loss, preset=preset)


def counted() -> tuple[int, int, int]:
    """Keys, threads and open files, once all ranks are here."""
    dist.barrier()
    keys = _torch.store().num_keys()
    dist.barrier()
    return keys, threading.active_count(), len(os.listdir("/proc/self/fd"))


def growth_of_steps(preset: str, steps: int) -> list[tuple[int, int, int]]:
    """Before and behind many steps, each followed by an evaluation, so that ranks meet twice."""
    _, batch, _ = models.mlp()
    parallel, found = made(preset), []
    for _ in range(2):
        for _ in range(steps):
            parallel(**batch).backward()
            parallel.zero_grad()
            with torch.no_grad():
                parallel(**batch)
        agreement.assert_same_on_all_ranks("the end", "")
        found.append(counted())
    return found


def groups_of_calls(shape: tuple[int, ...], stages: int, calls: int) -> list[int]:
    """Process groups there are after each call of `parallelize`."""
    found = []
    for _ in range(calls):
        model, batch, loss = models.mlp()
        pipeline = autopar.Pipeline(stages, "gpipe", 2) if stages > 1 else 1
        autopar.parallelize(model, shape, batch, loss=loss, pipeline=pipeline)
        found.append(len(dist.distributed_c10d._world.pg_map))
    return found


def kept_of_calls(preset: str, calls: int) -> int:
    """Of modules that were dropped, those that are still there but the last."""
    alive = []
    for _ in range(calls):
        alive.append(weakref.ref(made(preset)))
    gc.collect()
    return sum(each() is not None for each in alive[:-1])


def part_of_the_world() -> str:
    """A mesh of half of the ranks."""
    model, batch, loss = models.mlp()
    whole = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("a", "b"))
    try:
        autopar.parallelize(model, whole["a"], batch, loss=loss)
    except MeshError as error:
        return str(error)
    return ""
