"""What one process measures: matrix products, memory traffic, operator overhead, collectives."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
DTYPES = ("float32", "float64", "bfloat16")


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    matrix: int = 512
    repetitions: int = 12
    sizes: tuple[int, ...] = (2**10, 2**13, 2**16, 2**18, 2**20, 2**22, 2**24)
    nbytes: int = 2**25


QUICK = Effort(matrix=192, repetitions=3, sizes=(2**10, 2**16, 2**20), nbytes=2**22)


@dataclass(frozen=True)
class Measured:
    """One process' figures; collectives as seconds by (kind, ranks) and size."""

    flops_per_s: dict[str, float]
    bytes_per_s: float
    launch_s: float
    collectives: dict[tuple[str, int], dict[int, float]] = field(default_factory=dict)


def measure(effort: Effort) -> Measured:
    """All figures of this process; every rank of the default group must call it."""
    return Measured(
        flops_per_s={dtype: _flops_per_s(dtype, effort) for dtype in DTYPES},
        bytes_per_s=_bytes_per_s(effort),
        launch_s=_launch_s(effort),
        collectives=_collectives(effort) if dist.get_world_size() > 1 else {},
    )


def sustained_seconds(call: Callable[[], object], repetitions: int) -> float:
    """Seconds of one call in a row of them, all ranks starting together: the median of three rows.

    A row is long enough to feel that other ranks want the same cores.
    """
    call()
    found = []
    for _ in range(3):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(repetitions):
            call()
        found.append((time.perf_counter() - start) / repetitions)
    return statistics.median(found)


def _flops_per_s(dtype: str, effort: Effort) -> float:
    n = effort.matrix
    a = torch.rand(n, n).to(getattr(torch, dtype))
    return 2 * n**3 / sustained_seconds(lambda: a @ a, effort.repetitions)


def _bytes_per_s(effort: Effort) -> float:
    a = torch.rand(effort.nbytes // 4)
    out = torch.empty_like(a)
    # Reads one tensor, writes one.
    return (
        2
        * effort.nbytes
        / sustained_seconds(lambda: torch.mul(a, 2.0, out=out), effort.repetitions)
    )


def _launch_s(effort: Effort) -> float:
    """Overhead of one small operator in a training step: its forward under autograd, its backward."""
    count = 64
    x = torch.rand(8, requires_grad=True)

    def chain() -> None:
        y = x
        for _ in range(count):
            y = y * 1.5
        y.sum().backward()

    # Forward and backward are priced as two operator calls.
    return sustained_seconds(chain, effort.repetitions) / (2 * count)


def _collectives(effort: Effort) -> dict[tuple[str, int], dict[int, float]]:
    """Among all processes, and in pairs that are busy at the same time."""
    world = dist.get_world_size()
    found = _in_group(dist.group.WORLD, world, effort)
    if world > 2 and world % 2 == 0:
        pairs = [dist.new_group([rank, rank + 1]) for rank in range(0, world, 2)]
        found |= _in_group(pairs[dist.get_rank() // 2], 2, effort)
    return found


def _in_group(group: Any, ranks: int, effort: Effort) -> dict[tuple[str, int], dict[int, float]]:
    found: dict[tuple[str, int], dict[int, float]] = {}
    for kind in KINDS:
        times = {}
        for nbytes in effort.sizes:
            whole = torch.rand(nbytes // 4 // ranks * ranks)
            repetitions = max(3, effort.repetitions // (4 if nbytes > 2**20 else 1))
            call = _collective(kind, whole, ranks, group)
            times[nbytes] = sustained_seconds(call, repetitions)
        found[kind, ranks] = times
    return found


def _collective(kind: str, whole: torch.Tensor, ranks: int, group: Any) -> Callable[[], object]:
    """A call whose larger side is `whole`."""
    part = torch.empty(whole.numel() // ranks)
    other = torch.empty_like(whole)
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: gather(other, part, group=group),
        "reduce_scatter": lambda: scatter(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
    }
    return calls[kind]
