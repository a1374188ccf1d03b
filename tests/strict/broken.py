"""Programs that keep NCCL's rules, and programs that break one each."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from autopar.runtime import _torch, gathers
from autopar.runtime.pipeline.directions import Directions
from tests.pipelines import Line, check_lines


def _limit(seconds: float) -> None:
    os.environ["AUTOPAR_STRICT_S"] = str(seconds)


def everything() -> None:
    """Every collective gives what it should."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(6.0).view(3, 2) + 10 * rank
    every = [torch.arange(6.0).view(3, 2) + 10 * r for r in range(size)]
    total = sum(every, torch.zeros(3, 2))

    summed = mine.clone()
    dist.all_reduce(summed)
    assert torch.equal(summed, total)
    highest = mine.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    assert torch.equal(highest, every[-1])
    rooms = [torch.empty(3, 2) for _ in range(size)]
    dist.all_gather(rooms, mine)
    assert all(map(torch.equal, rooms, every))
    whole = torch.empty(3 * size, 2)
    _torch.all_gather_single(whole, mine)
    assert torch.equal(whole, torch.cat(every))
    part = torch.empty(2)
    wide = torch.arange(2.0 * size) + rank
    _torch.reduce_scatter_single(part, wide)
    expected = sum((torch.arange(2.0 * size) + r for r in range(size)), torch.zeros(2 * size))
    assert torch.equal(part, expected.chunk(size)[rank])
    many = [torch.empty(2 * size), torch.empty(3 * size, dtype=torch.int64)]
    parts = [torch.full((2,), float(rank)), torch.full((3,), rank)]
    gathers.all_gather_many(many, parts, dist.group.WORLD)
    assert torch.equal(many[1], torch.arange(size).repeat_interleave(3))
    word = torch.full((3,), float(rank))
    dist.broadcast(word, src=size - 1)
    assert torch.equal(word, torch.full((3,), size - 1.0))
    got = torch.empty(size)
    dist.all_to_all_single(got, torch.arange(1.0 * size) + 10 * rank)
    assert torch.equal(got, rank + 10 * torch.arange(1.0 * size))
    uneven = torch.empty(sum(r + 1 for r in range(size)))
    dist.all_to_all_single(
        uneven, torch.full((size * (rank + 1),), float(rank)),
        [r + 1 for r in range(size)], [rank + 1] * size,
    )  # fmt: skip
    assert torch.equal(uneven, torch.cat([torch.full((r + 1,), float(r)) for r in range(size)]))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    _lists(rank, size, mine, every, total)
    dist.barrier()
    if size > 1:
        _ring(rank, size)


def _lists(
    rank: int, size: int, mine: torch.Tensor, every: list[torch.Tensor], total: torch.Tensor
) -> None:
    """Collectives over lists of tensors, and those with a root."""
    last = size - 1
    summed = mine.clone()
    dist.reduce(summed, dst=last)
    assert torch.equal(summed, total if rank == last else mine)
    rooms = [torch.empty(3, 2) for _ in range(size)] if rank == last else None
    dist.gather(mine, rooms, dst=last)
    assert rooms is None or all(map(torch.equal, rooms, every))
    part = torch.empty(3, 2)
    dist.scatter(part, every if rank == last else None, src=last)
    assert torch.equal(part, mine)
    dist.reduce_scatter(part, [x + rank for x in every])
    assert torch.equal(part, size * mine + sum(range(size)))
    got = [torch.empty(1) for _ in range(size)]
    dist.all_to_all(got, [torch.full((1,), 10.0 * rank + other) for other in range(size)])
    assert torch.equal(torch.cat(got), 10.0 * torch.arange(size) + rank)


def _ring(rank: int, size: int) -> None:
    """A batch in which everybody sends to the next."""
    mine, got = torch.full((4,), float(rank)), torch.empty(4)
    ops = [
        dist.P2POp(dist.isend, mine, (rank + 1) % size),
        dist.P2POp(dist.irecv, got, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert torch.equal(got, torch.full((4,), float((rank - 1) % size)))


def functional() -> None:
    """The functional collectives, eager and with gradients."""
    import torch.distributed._functional_collectives as fc

    group = dist.group.WORLD
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((2,), float(rank), requires_grad=True)
    whole = fc.all_gather_single_autograd(x, 0, group)
    (whole * torch.arange(2.0 * size)).sum().backward()
    assert torch.equal(x.grad, size * torch.arange(2.0 * size).chunk(size)[rank])
    assert torch.equal(
        fc.all_reduce(torch.ones(2), "sum", group) + 0, torch.full((2,), float(size))
    )


def another_shape() -> None:
    dist.all_reduce(torch.ones(2 + dist.get_rank()))


def another_kind() -> None:
    if dist.get_rank():
        dist.all_reduce(torch.ones(2))
    else:
        dist.broadcast(torch.ones(2), src=0)


def another_dtype() -> None:
    dist.all_reduce(torch.ones(2, dtype=torch.float64 if dist.get_rank() else torch.float32))


def another_order() -> None:
    """Two sums, the other way round on one rank."""
    sizes = (2, 3) if dist.get_rank() else (3, 2)
    for work in [dist.all_reduce(torch.ones(size), async_op=True) for size in sizes]:
        work.wait()


def read_early() -> bool:
    """Whether what is read before `wait` is garbage."""
    x = torch.ones(3)
    work = dist.all_reduce(x, async_op=True)
    early = bool(x.isnan().all())
    work.wait()
    return early and torch.equal(x, torch.full((3,), float(dist.get_world_size())))


def input_changed() -> None:
    x, whole = torch.ones(2), torch.empty(2 * dist.get_world_size())
    work = _torch.all_gather_single(whole, x, async_op=True)
    x.add_(1)
    work.wait()


def result_written() -> None:
    x = torch.ones(2)
    work = dist.all_reduce(x, async_op=True)
    x.zero_()
    work.wait()


def unequal_split() -> None:
    """One rank expects more than the other sends."""
    rank = dist.get_rank()
    got = torch.empty(3 if rank else 2)
    dist.all_to_all_single(got, torch.ones(2), [1, 2] if rank else [1, 1], [1, 1])


def receives_first() -> None:
    """Both ranks post their receive, then send: one queue per pair, so neither send ever starts."""
    peer = 1 - dist.get_rank()
    got = torch.empty(2)
    receive = dist.irecv(got, peer)
    send = dist.isend(torch.ones(2), peer)
    receive.wait()
    send.wait()


def tags_crossed() -> None:
    """Gloo matches tags; NCCL the order."""
    rank = dist.get_rank()
    sizes = {0: 2, 1: 3}
    if rank:
        boxes = {tag: torch.empty(sizes[tag]) for tag in (1, 0)}
        works = [dist.irecv(box, 0, tag=tag) for tag, box in boxes.items()]
    else:
        works = [dist.isend(torch.ones(sizes[tag]), 1, tag=tag) for tag in (0, 1)]
    for work in works:
        work.wait()


def alone() -> None:
    """One rank calls, the other does not come."""
    if dist.get_rank():
        dist.all_reduce(torch.ones(2))


def one_group(lines: list[Line]) -> None:
    """Pipelines whose transfers are all in one group, whatever their direction."""
    with mock.patch.object(Directions, "between", lambda *_: dist.group.WORLD):
        check_lines(lines)
