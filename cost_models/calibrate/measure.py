"""What each process measures: operators as training runs them, and collectives, at several sizes.

Every rank of the default group makes the same measurements at the same time, because ranks that
share a host's cores slow each other down.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F

from cost_models.calibrate.operators import COPIES, Amount, samples
from cost_models.calibrate.waiting import NO_WAITING, Waiting, waiting
from cost_models.curves import Direction

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
DTYPES = ("float32", "float64", "bfloat16")

BLOCKS, BLOCK_CALLS = 8, 9
"""On tiny tensors so many blocks of so many operators are timed in a row."""
CHAIN_CALLS = 2
"""Length of the chains of matrix products and of elementwise operators."""
OVERLAPS = 5
"""So many times as often as other figures is measured how far communication hides."""
SIDES = {"cpu": 128, "cuda": 4096}
"""Of the matrices that are multiplied beside communication: they fill an accelerator, too."""
SHORTEST_S = 1e-6
"""What a message takes at least, whatever noise says."""
MOST_CALLS = 100
"""Limit of calls in one row of them."""

Action = Callable[[], object]
Pick = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Effort:
    """What is measured and how long: each row of calls takes about `row_s`, or one call."""

    matrices: tuple[int, ...] = (32, 64, 128, 256, 512)
    tensor_nbytes: tuple[int, ...] = (2**14, 2**17, 2**19, 2**20, 2**22, 2**24)
    message_nbytes: tuple[int, ...] = (2**10, 2**14, 2**18, 2**20, 2**22, 2**24)
    rounds: int = 3
    passes: int = 2
    curve_nbytes: tuple[int, ...] = (2**16, 2**19, 2**22)
    row_s: float = 0.01
    pause_s: float = 0.01
    """Before each row of collectives, as training computes between them: what limits a link may let
    bursts through after a rest."""
    waiting_rows: int = 15
    """Of turns in which ranks compute and meet."""
    device: str = "cpu"
    """Where messages lie, and what is computed beside them."""


QUICK = Effort(
    matrices=(32, 128, 256),
    tensor_nbytes=(2**14, 2**20),
    message_nbytes=(2**10, 2**18),
    rounds=2,
    passes=1,
    curve_nbytes=(2**16, 2**20),
    row_s=0.002,
    waiting_rows=1,
)


@dataclass(frozen=True)
class Measured:
    """Seconds by size; the operators' are those of a forward and its backward.

    From the first rank's start to the last one's end.
    """

    tiny_s: float
    """Of an operator on a few numbers, as a module calls it: what the framework spends."""
    matmul_s: Mapping[str, Mapping[int, float]]
    """By dtype and by n, of an n x n by n x n product."""
    elementwise_s: Mapping[int, float]
    """By bytes of one tensor, of the product of two tensors."""
    collectives: Mapping[tuple[str, int], Mapping[int, float]] = field(default_factory=dict)
    """By kind, ranks and bytes of the larger tensor."""
    operators: Mapping[Amount, Mapping[Direction, float]] = field(default_factory=dict)
    """Of each pass by itself."""
    overlap: float = 0.0
    """Share of an all-reduce beside as much compute that costs nothing."""
    waiting: Waiting = NO_WAITING
    """Of ranks for each other."""


def measure(effort: Effort, apart: bool = False) -> Measured:
    """All figures; every rank of the default group must call it, and gets the same.

    `apart`: collectives are measured by themselves (`in_group`), between ranks of one's choice.
    Seconds lie between the passes over everything, so that what keeps the machine busy for a moment
    spoils one pass: the fastest counts.  Whether large tensors find their pages mapped is luck that
    training has as well: the mean counts.  Operators one by one come last, as what they leave of pages
    is no luck.
    """
    found = combined(
        [_measure_once(effort, apart) for _ in range(effort.passes)], min, statistics.fmean
    )
    if dist.get_world_size() > 1:
        found = replace(found, waiting=waiting(effort.waiting_rows))
        if not apart:
            return found
    passes = [_operator_seconds(effort) for _ in range(effort.passes)]
    return replace(found, operators=_picked(passes))


def _measure_once(effort: Effort, apart: bool) -> Measured:
    alone = dist.get_world_size() == 1
    return Measured(
        tiny_s=_tiny_seconds(effort),
        matmul_s={dtype: _matmul_seconds(dtype, effort) for dtype in DTYPES},
        elementwise_s=_elementwise_seconds(effort),
        collectives={} if alone or apart else _all_collectives(effort),
        overlap=0.0 if alone else overlap(effort),
    )


def combined(several: Sequence[Measured], pick: Pick, pick_elementwise: Pick) -> Measured:
    """One of several measurements of the same machine, figure by figure."""

    def each(tables: Iterable[Mapping[int, float]], pick: Pick = pick) -> dict[int, float]:
        found = list(tables)
        return {size: pick([table[size] for table in found]) for size in found[0]}

    first = several[0]
    return Measured(
        tiny_s=pick([one.tiny_s for one in several]),
        matmul_s={d: each(one.matmul_s[d] for one in several) for d in first.matmul_s},
        elementwise_s=each((one.elementwise_s for one in several), pick_elementwise),
        collectives={k: each(one.collectives[k] for one in several) for k in first.collectives},
        operators=_picked([one.operators for one in several], pick),
        overlap=statistics.median(one.overlap for one in several),
        waiting=Waiting(
            statistics.median(one.waiting.behind for one in several),
            statistics.median(one.waiting.late_s for one in several),
        ),
    )


def _picked(
    several: Sequence[Mapping[Amount, Mapping[Direction, float]]], pick: Pick = min
) -> dict[Amount, dict[Direction, float]]:
    """One of several measurements, pass by pass: the fastest, or what else is wanted."""
    return {
        amount: {way: pick([one[amount][way] for one in several]) for way in ways}
        for amount, ways in several[0].items()
    }


def sustained_seconds(
    actions: Mapping[int, Action], effort: Effort, of_rows: Literal["fastest", "median"] = "fastest"
) -> dict[int, float]:
    """Seconds of one call of each action in a row of them, of several rows.

    A row lasts from the first rank's start to the last one's end, by the host's clock: where ranks
    outnumber cores, each by its own clock would not see the time that it waits to be started.
    Operators take the fastest row, as only other programs can slow a row down; collectives the median
    row, as luck is part of how ranks find each other.

    All ranks start a row together, and a row is long enough to feel that other ranks want the same
    cores.  The rows of different actions alternate, so that a busy moment of the machine spoils one
    row of each rather than every row of one.  Every rank returns the same.
    """
    calls = {key: _calls_in_a_row(action, effort.row_s) for key, action in actions.items()}
    rows = torch.zeros(effort.rounds, len(actions), dtype=torch.float64)
    for row in rows:
        for column, (key, action) in enumerate(actions.items()):
            if of_rows == "median":
                time.sleep(effort.pause_s)
            dist.barrier()
            row[column] = _common_seconds(action, calls[key]) / calls[key]
    seconds = rows.amin(0) if of_rows == "fastest" else rows.median(0).values
    return dict(zip(actions, seconds.tolist(), strict=True))


def _common_seconds(action: Action, calls: int) -> float:
    """A row of calls on all ranks at once, the same on all of them: of the host that takes longest.

    Clocks of different hosts have nothing in common; ``torchrun`` numbers hosts by ``GROUP_RANK``.
    """
    start = time.monotonic()
    _row_seconds(action, calls)
    host = float(os.environ.get("GROUP_RANK", 0))
    mine = torch.tensor([host, start, time.monotonic()], dtype=torch.float64)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return longest(tuple(found.tolist()) for found in every)


def longest(rows: Iterable[tuple[float, ...]]) -> float:
    """Of (host, start, end) by each host's clock: the most from a host's first start to its last end."""
    spans: dict[float, tuple[float, float]] = {}
    for host, start, end in rows:
        first, last = spans.get(host, (start, end))
        spans[host] = (min(first, start), max(last, end))
    return max(last - first for first, last in spans.values())


def _calls_in_a_row(action: Action, row_s: float) -> int:
    """As many as fit into `row_s`; the same on all ranks, which wait for each other in collectives."""
    action()
    slowest_s = torch.tensor(_row_seconds(action, 1), dtype=torch.float64)
    dist.all_reduce(slowest_s, op=dist.ReduceOp.MAX)
    return min(MOST_CALLS, max(1, int(row_s / max(slowest_s.item(), 1e-9))))


def _row_seconds(action: Action, calls: int) -> float:
    _settle()
    start = time.perf_counter()
    for _ in range(calls):
        action()
    _settle()
    return time.perf_counter() - start


def _settle() -> None:
    """Wait for what was queued on an accelerator."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _tiny_seconds(effort: Effort) -> float:
    """Of the operators of a block, on the least of tensors."""
    start = torch.rand(2, 4, requires_grad=True)
    weight, bias = torch.rand(4, 4, requires_grad=True), torch.rand(4, requires_grad=True)

    def block(given: torch.Tensor) -> torch.Tensor:
        out = F.layer_norm(given, (4,), bias, bias)
        out = F.linear(out, weight, bias).unflatten(-1, (2, 2)).transpose(0, 1)
        return F.gelu(out.transpose(0, 1).flatten(-2)) * given + given

    def chain() -> None:
        out = start
        for _ in range(BLOCKS):
            out = block(out)
        torch.autograd.grad(out, (start, weight, bias), start)

    return sustained_seconds({0: chain}, effort)[0] / (BLOCKS * BLOCK_CALLS)


def _operator_seconds(effort: Effort) -> dict[Amount, dict[Direction, float]]:
    found: dict[Amount, dict[Direction, float]] = {}
    for sample in samples(effort.matrices, effort.curve_nbytes):
        forward, backward = sample.actions()
        seconds = sustained_seconds({0: forward, 1: backward}, effort)
        found[sample.amount] = {"forward": seconds[0] / COPIES, "backward": seconds[1] / COPIES}
    return found


def _matmul_seconds(dtype: str, effort: Effort) -> dict[int, float]:
    def chain(n: int) -> Action:
        def matrix() -> torch.Tensor:
            values: torch.Tensor = (torch.randn(n, n) / n**0.5).to(getattr(torch, dtype))
            return values.requires_grad_(True)

        return _trained(matrix, torch.matmul)

    seconds = sustained_seconds({n: chain(n) for n in effort.matrices}, effort)
    return {n: time_s / CHAIN_CALLS for n, time_s in seconds.items()}


def _elementwise_seconds(effort: Effort) -> dict[int, float]:
    def chain(nbytes: int) -> Action:
        return _trained(lambda: torch.rand(nbytes // 4, requires_grad=True), torch.mul)

    seconds = sustained_seconds({nbytes: chain(nbytes) for nbytes in effort.tensor_nbytes}, effort)
    return {nbytes: time_s / CHAIN_CALLS for nbytes, time_s in seconds.items()}


def _trained(
    operand: Callable[[], torch.Tensor],
    operator: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Action:
    """A chain of `CHAIN_CALLS` binary operators, forward and backward."""
    first, seed = operand(), operand().detach()
    others = [operand() for _ in range(CHAIN_CALLS)]

    def chain() -> None:
        out = first
        for other in others:
            out = operator(out, other)
        torch.autograd.grad(out, [first, *others], seed)

    return chain


def overlap(effort: Effort) -> float:
    """The share of an all-reduce beside as much compute that costs nothing; all ranks call it."""
    message = _message(max(effort.message_nbytes[:-1]) // 4, effort)
    side = SIDES[effort.device]
    matrix = torch.randn(side, side, device=effort.device)
    communicate_s = sustained_seconds({0: lambda: dist.all_reduce(message)}, effort)[0]
    product_s = sustained_seconds({0: lambda: matrix @ matrix}, effort)[0]
    products = torch.tensor(communicate_s / product_s)
    dist.broadcast(products, 0)
    calls = int(products.item()) + 1

    def compute() -> None:
        for _ in range(calls):
            torch.matmul(matrix, matrix)

    def one_by_one() -> None:
        dist.all_reduce(message)
        compute()

    def both() -> None:
        work = dist.all_reduce(message, async_op=True)
        compute()
        work.wait()

    def share() -> float:
        seconds = sustained_seconds({0: compute, 1: one_by_one, 2: both}, effort)
        sent_s = max(SHORTEST_S, seconds[1] - seconds[0])
        return (seconds[1] - seconds[2]) / min(seconds[0], sent_s)

    # A difference of noisy times: three that lie close together, often, and the median.
    return min(1.0, max(0.0, statistics.median(share() for _ in range(OVERLAPS * effort.rounds))))


def _all_collectives(effort: Effort) -> dict[tuple[str, int], dict[int, float]]:
    """Among all processes, and in pairs that are busy at the same time."""
    world = dist.get_world_size()
    found = in_group(dist.group.WORLD, world, effort)
    if world > 2 and world % 2 == 0:
        pairs = [dist.new_group([rank, rank + 1]) for rank in range(0, world, 2)]
        found |= in_group(pairs[dist.get_rank() // 2], 2, effort)
    return found


def in_group(group: Any, ranks: int, effort: Effort) -> dict[tuple[str, int], dict[int, float]]:
    """Seconds of collectives in a group, by kind, ranks and bytes of the larger tensor.

    All ranks of the default group call it, each with its own group of so many.
    """
    found: dict[tuple[str, int], dict[int, float]] = {}
    for kind in KINDS:
        calls = {
            nbytes: _collective(kind, _message(nbytes // 4 // ranks * ranks, effort), ranks, group)
            for nbytes in effort.message_nbytes
        }
        found[kind, ranks] = sustained_seconds(calls, effort, of_rows="median")
    return found


def sends(peer: int | None, effort: Effort) -> dict[int, float]:
    """Seconds of one message to the peer and one from it at the same time, by bytes of each.

    Without a peer this rank waits for the others.  (There and then back, pairs that share a link would
    take turns in its two directions, and each would find it free.)
    """

    def exchange(nbytes: int) -> Action:
        message, place = _message(nbytes // 4, effort), _message(nbytes // 4, effort)

        def both_ways() -> None:
            ways = [dist.P2POp(dist.isend, message, peer), dist.P2POp(dist.irecv, place, peer)]
            for work in dist.batch_isend_irecv(ways):
                work.wait()

        return (lambda: None) if peer is None else both_ways

    calls = {nbytes: exchange(nbytes) for nbytes in effort.message_nbytes}
    return sustained_seconds(calls, effort, of_rows="median")


def _message(count: int, effort: Effort) -> torch.Tensor:
    return torch.rand(count, device=effort.device)


def _collective(kind: str, whole: torch.Tensor, ranks: int, group: Any) -> Action:
    """A call whose larger side is `whole`."""
    part = whole.new_empty(whole.numel() // ranks)
    other = torch.empty_like(whole)
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    calls: dict[str, Action] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: gather(other, part, group=group),
        "reduce_scatter": lambda: scatter(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
    }
    return calls[kind]
