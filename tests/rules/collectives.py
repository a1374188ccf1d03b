"""Local implementations with collectives, run by threads: one thread per rank, fake collectives.

Every all-reduce and all-to-all is counted, so that a variant can be held to the traffic it declares.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest import mock

import torch
import torch.distributed as dist

from autopar.ir.mesh import Mesh
from autopar.runtime import _torch
from autopar.runtime.axes import Axes, Axis

T = TypeVar("T")
PATIENCE_S = 10.0


@dataclass
class Group:
    """The ranks along one axis; their threads meet at the barrier."""

    size: int
    group_name: str = ""
    sent: list[float] = field(default_factory=list)
    """Bytes of every collective: what ranks send to themselves and others, on average over them."""
    slots: dict[int, torch.Tensor] = field(default_factory=dict)
    parts: dict[int, tuple[torch.Tensor, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size)

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> None:
        """In place, as torch does it; all ranks compute in the same order."""
        place = self.barrier.wait(PATIENCE_S)
        self.slots[place] = tensor.detach().clone()
        self.barrier.wait(PATIENCE_S)
        stacked = torch.stack([self.slots[i] for i in range(self.size)])
        maximum = op == dist.ReduceOp.MAX
        total = stacked.amax(0) if maximum else stacked.sum(0)
        if place == 0:
            self.sent.append(tensor.nbytes)
        self.barrier.wait(PATIENCE_S)
        tensor.detach().copy_(total)

    def all_to_all(
        self, rank: int, made: torch.Tensor, given: torch.Tensor, come: Any, leave: Any
    ) -> None:
        """Rows along dim 0, as many from and to each rank as these numbers say; without them equal."""
        equal = [len(given) // self.size] * self.size
        self.parts[rank] = given.detach().clone().split(leave or equal)
        self.barrier.wait(PATIENCE_S)
        came = [self.parts[other][rank] for other in range(self.size)]
        assert list(map(len, came)) == (come or equal), "what comes is not what is expected"
        made.detach().copy_(torch.cat(came))
        total = sum(part.nbytes for parts in self.parts.values() for part in parts)
        if self.barrier.wait(PATIENCE_S) == 0:
            self.sent.append(total / self.size)
        self.barrier.wait(PATIENCE_S)


_HERE: ContextVar[Axes] = ContextVar("axes")


def here(name: str) -> Axis:
    """The axis of this name, as the rank whose thread this is sees it."""
    return _HERE.get()[name]


def _all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
    group.all_reduce(tensor, op)


class _Done:
    """Of a collective that has ended already."""

    def wait(self) -> None:
        """Nothing is left to wait for."""


def _all_to_all(
    made: torch.Tensor,
    given: torch.Tensor,
    come: Any = None,
    leave: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> _Done:
    axis = next(axis for axis in _HERE.get().by_name.values() if axis.group is group)
    group.all_to_all(axis.rank, made, given, come, leave)
    return _Done()


@contextmanager
def ranks(mesh: Mesh) -> Iterator[tuple[list[Axes], list[Group]]]:
    """Each rank's axes, and all groups; collectives of `torch.distributed` are ours inside."""
    groups: dict[tuple[int, tuple[int, ...]], Group] = {}
    every = []
    for rank in range(mesh.world_size):
        coordinate = mesh.coordinate(rank)
        axes = {}
        for number, axis in enumerate(mesh):
            others = (*coordinate[:number], *coordinate[number + 1 :])
            place = number, others
            group: Any = groups.setdefault(place, Group(axis.size, str(place)))
            axes[axis.name] = Axis(axis.name, group, coordinate[number], axis.size)
        every.append(Axes(axes))
    named = {group.group_name: group for group in groups.values()}
    with (
        mock.patch.object(dist, "all_reduce", _all_reduce),
        mock.patch.object(dist, "all_to_all_single", _all_to_all),
        mock.patch.object(_torch, "group_named", named.__getitem__),
    ):
        yield every, list(groups.values())


def run_on_all(mesh: Mesh, work: Callable[[int], T]) -> tuple[list[T], tuple[float, ...]]:
    """`work(rank)` of every rank at once, and the bytes of each collective of one rank's groups."""

    def job(rank: int) -> T:
        try:
            _HERE.set(every[rank])
            return work(rank)
        except BaseException:
            for group in groups:
                group.barrier.abort()
            raise

    with ranks(mesh) as (every, groups), ThreadPoolExecutor(mesh.world_size) as pool:
        futures = [pool.submit(job, rank) for rank in range(mesh.world_size)]
        errors = [e for future in futures if (e := future.exception()) is not None]
        real = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
        if errors:
            raise (real or errors)[0]
        seen = [tuple(group.sent) for group in groups if group.sent]
        return [future.result() for future in futures], seen[0] if seen else ()
