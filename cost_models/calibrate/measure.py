"""Measurements in each process: operators in forward and backward, and collectives, at several sizes.

All ranks of the default group make the same measurements at the same time, because ranks that share a
host's cores slow each other down.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from cost_models.calibrate.effort import Effort
from cost_models.calibrate.operators import Amount, samples
from cost_models.calibrate.rows import Action, computing_seconds, crowd_of, sustained_seconds
from cost_models.calibrate.waiting import NO_WAITING, Waiting, waiting
from cost_models.curves import Direction

DTYPES = ("float32", "float64", "bfloat16")

BLOCKS, BLOCK_CALLS = 8, 9
"""Blocks, and operators per block, of the chain that is timed on tiny tensors."""
CHAIN_CALLS = 2
"""Length of the chains of matrix products and of elementwise operators."""
OVERLAPS = 5
"""Repetitions of the overlap measurement, relative to other figures."""
SIDES = {"cpu": 128, "cuda": 4096}
"""Size of the matrices whose products overlap with communication; large enough for the device."""
SHORTEST_S = 1e-6
"""Minimum time of a message; noise may suggest less."""

Pick = Callable[[Sequence[float]], float]
_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_CALLS: dict[str, Callable[..., object]] = {
    "all_reduce": lambda whole, part, other, group: dist.all_reduce(whole, group=group),
    "all_gather": lambda whole, part, other, group: _gather(other, part, group=group),
    "reduce_scatter": lambda whole, part, other, group: _scatter(part, whole, group=group),
    "all_to_all": lambda whole, part, other, group: dist.all_to_all_single(
        other, whole, group=group
    ),
}
"""The exchanges that are timed, on a whole tensor, a rank's part and another whole one."""
KINDS = tuple(_CALLS)


@dataclass(frozen=True)
class Measured:
    """Measured seconds by size.

    Operator times are those of a forward and its backward together, except in `operators`.  Collectives
    last from the first rank's start to the last rank's end.
    """

    tiny_s: float
    """Time of an operator on tiny tensors, called as in a module: the framework's overhead."""
    matmul_s: Mapping[str, Mapping[int, float]]
    """Time of an n x n by n x n product, by dtype and n."""
    elementwise_s: Mapping[int, float]
    """Time of the elementwise product of two tensors, by bytes of one."""
    collectives: Mapping[tuple[str, int], Mapping[int, float]] = field(default_factory=dict)
    """Times by (kind, ranks) and by bytes of the larger tensor."""
    operators: Mapping[Amount, Mapping[Direction, float]] = field(default_factory=dict)
    """Times of forward and backward separately."""
    overlap: float = 0.0
    """Share of an all-reduce that equally long compute hides."""
    waiting: Waiting = NO_WAITING
    """How ranks wait for each other."""


def measure(effort: Effort, apart: bool = False) -> Measured:
    """Measure all figures; every rank of the default group must call it, and gets the same result.

    With `apart`, collectives (`in_group`) and overlap (`overlap`) are left out, for the caller to
    measure between chosen ranks.  The passes over all figures are seconds apart, so that a short
    disturbance affects one pass, and the fastest one counts.  Large elementwise operators are an
    exception: whether their pages are already mapped varies in training, too, so the mean counts.
    Single operators are timed last, as they change which pages are mapped.
    """
    found = combined(
        [_measure_once(effort, apart) for _ in range(effort.passes)], min, statistics.fmean
    )
    if dist.get_world_size() > 1:
        found = replace(found, waiting=waiting(effort.waiting_rows))
        if not apart:
            return found
    passes = [_operator_seconds(effort, crowd_of(effort)) for _ in range(effort.passes)]
    return replace(found, operators=_picked(passes))


def _measure_once(effort: Effort, apart: bool) -> Measured:
    alone, crowd = dist.get_world_size() == 1, crowd_of(effort)
    return Measured(
        tiny_s=_tiny_seconds(effort, crowd),
        matmul_s={dtype: _matmul_seconds(dtype, effort, crowd) for dtype in DTYPES},
        elementwise_s=_elementwise_seconds(effort, crowd),
        collectives={} if alone or apart else _all_collectives(effort),
        overlap=0.0 if alone or apart else overlap(effort),
    )


def combined(several: Sequence[Measured], pick: Pick, pick_elementwise: Pick) -> Measured:
    """Combine several measurements of the same machine, figure by figure."""

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
    """Combine several measurements of operators, by the minimum or another function."""
    return {
        amount: {way: pick([one[amount][way] for one in several]) for way in ways}
        for amount, ways in several[0].items()
    }


def _tiny_seconds(effort: Effort, crowd: float) -> float:
    """Return the mean time of a block's operators on tiny tensors."""
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

    return computing_seconds({0: chain}, effort, crowd)[0] / (BLOCKS * BLOCK_CALLS)


def _operator_seconds(effort: Effort, crowd: float) -> dict[Amount, dict[Direction, float]]:
    found: dict[Amount, dict[Direction, float]] = {}
    for sample in samples(effort.matrices, effort.curve_nbytes):
        forward, backward = sample.actions()
        seconds = computing_seconds({0: forward, 1: backward}, effort, crowd)
        found[sample.amount] = {
            "forward": seconds[0] / sample.copies, "backward": seconds[1] / sample.copies,
        }  # fmt: skip
    return found


def _matmul_seconds(dtype: str, effort: Effort, crowd: float) -> dict[int, float]:
    def chain(n: int) -> Action:
        def matrix() -> torch.Tensor:
            values: torch.Tensor = (torch.randn(n, n) / n**0.5).to(getattr(torch, dtype))
            return values.requires_grad_(True)

        return _trained(matrix, torch.matmul)

    seconds = computing_seconds({n: chain(n) for n in effort.matrices}, effort, crowd)
    return {n: time_s / CHAIN_CALLS for n, time_s in seconds.items()}


def _elementwise_seconds(effort: Effort, crowd: float) -> dict[int, float]:
    def chain(nbytes: int) -> Action:
        return _trained(lambda: torch.rand(nbytes // 4, requires_grad=True), torch.mul)

    actions = {nbytes: chain(nbytes) for nbytes in effort.tensor_nbytes}
    seconds = computing_seconds(actions, effort, crowd)
    return {nbytes: time_s / CHAIN_CALLS for nbytes, time_s in seconds.items()}


def _trained(
    operand: Callable[[], torch.Tensor],
    operator: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Action:
    """Return an action: a chain of `CHAIN_CALLS` binary operators, forward and backward."""
    first, seed = operand(), operand().detach()
    others = [operand() for _ in range(CHAIN_CALLS)]

    def chain() -> None:
        out = first
        for other in others:
            out = operator(out, other)
        torch.autograd.grad(out, [first, *others], seed)

    return chain


def overlap(effort: Effort, group: Any = None) -> float:
    """Return the share of an all-reduce that equally long compute hides.

    All ranks of the default group must call it, each with its own group; groups have equal sizes.
    """
    message = _message(max(effort.message_nbytes[:-1]) // 4, effort)
    side = SIDES[effort.device]
    matrix = torch.randn(side, side, device=effort.device)
    communicate_s = sustained_seconds({0: lambda: dist.all_reduce(message, group=group)}, effort)[0]
    product_s = sustained_seconds({0: lambda: matrix @ matrix}, effort)[0]
    products = torch.tensor(communicate_s / product_s)
    dist.broadcast(products, 0)
    calls = int(products.item()) + 1

    def compute() -> None:
        for _ in range(calls):
            torch.matmul(matrix, matrix)

    def one_by_one() -> None:
        dist.all_reduce(message, group=group)
        compute()

    def both() -> None:
        work = dist.all_reduce(message, group=group, async_op=True)
        compute()
        work.wait()

    def share() -> float:
        seconds = sustained_seconds({0: compute, 1: one_by_one, 2: both}, effort)
        sent_s = max(SHORTEST_S, seconds[1] - seconds[0])
        return (seconds[1] - seconds[2]) / min(seconds[0], sent_s)

    # A difference of noisy times: the three are measured close together, repeatedly, for a median.
    return min(1.0, max(0.0, statistics.median(share() for _ in range(OVERLAPS * effort.rounds))))


def _all_collectives(effort: Effort) -> dict[tuple[str, int], dict[int, float]]:
    """Measure collectives among all processes, and in pairs that are busy at the same time."""
    world = dist.get_world_size()
    found = in_group(dist.group.WORLD, world, effort)
    if world > 2 and world % 2 == 0:
        pairs = [dist.new_group([rank, rank + 1]) for rank in range(0, world, 2)]
        found |= in_group(pairs[dist.get_rank() // 2], 2, effort)
    return found


def in_group(group: Any, ranks: int, effort: Effort) -> dict[tuple[str, int], dict[int, float]]:
    """Return the seconds of collectives in a group, by (kind, ranks) and bytes of the larger tensor.

    All ranks of the default group must call it, each with its own group of `ranks` ranks.
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
    """Return the seconds of simultaneous messages to the peer and from it, by bytes of each.

    A rank without a peer only waits for the others.
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


def sends_each_way(peer: int | None, leads: bool, effort: Effort) -> dict[int, float]:
    """Return the mean seconds of a message from a leading rank to its peer and of one back, by bytes.

    First all leaders send, then all others: on a slow link gloo sometimes alternates between the two
    directions and sometimes not (16 MiB at 1 Gbit/s took 277 or 139 ms).  A rank without a peer only
    waits for the others.
    """

    def sending(nbytes: int, leaders: bool) -> Action:
        message = _message(nbytes // 4, effort)
        if peer is None:
            return lambda: None
        if leads is leaders:
            return lambda: dist.send(message, peer)
        return lambda: dist.recv(message, peer)

    there, back = (
        sustained_seconds(
            {nbytes: sending(nbytes, leaders) for nbytes in effort.message_nbytes},
            effort,
            of_rows="median",
        )
        for leaders in (True, False)
    )
    return {nbytes: (there[nbytes] + back[nbytes]) / 2 for nbytes in there}


def _message(count: int, effort: Effort) -> torch.Tensor:
    return torch.rand(count, device=effort.device)


def _collective(kind: str, whole: torch.Tensor, ranks: int, group: Any) -> Action:
    """Return a call of the collective whose larger tensor is `whole`."""
    part, other = whole.new_empty(whole.numel() // ranks), torch.empty_like(whole)
    return lambda: _CALLS[kind](whole, part, other, group)
