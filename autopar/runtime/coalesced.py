"""Coalesced weight collectives: one for all weights of a block, as `autopar.plans.grouping` decides.

Emitted code converts each weight where it is used.  The first such conversion of a block also converts
the block's other weights (same axis, same hop), and later ones find their result ready.  Their gradients
are reduced in one collective, and weights that the backward gathers again are gathered together too.
The bytes are the same; the messages are fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from autopar.ir.placement import R, S, Type
from autopar.plans.buckets import NBYTES
from autopar.plans.grouping import Group
from autopar.runtime import _torch, regather
from autopar.runtime.context import Axis
from autopar.runtime.named import label, named


@dataclass
class Fetching:
    """The groups of a running program: weights that are to be gathered, and results that are ready."""

    group_of: dict[tuple[str, int], Group]
    waiting: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By id of a tensor that will be gathered: the weight's name and the hop."""
    inputs: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)
    made: dict[int, torch.Tensor] = field(default_factory=dict)

    def offer(self, name: str, hop: int, tensor: torch.Tensor) -> None:
        """Register a tensor that a group will gather."""
        if (name, hop) in self.group_of:
            self.waiting[id(tensor)] = (name, hop)
            self.inputs[name, hop] = tensor

    def fetch(self, x: torch.Tensor, where: Axis, target: Type) -> torch.Tensor | None:
        """Return `x` gathered, with its whole block if it is the first; None if it has no group."""
        if id(x) in self.made:
            return regather.taken(self.made.pop(id(x)))
        place = self.waiting.get(id(x))
        group = None if place is None else self.group_of[place]
        if place is None or group is None or (group.axis, group.target) != (where.name, target):
            return None
        tensors = [self._taken(member.name, group.hop) for member in group.members]
        results = travel(tensors, where, group)
        _remember(tensors, results, where, group)
        for member, source, result in zip(group.members, tensors, results, strict=True):
            self.made[id(source)] = result
            self.offer(member.name, group.hop + 1, result)
        return regather.taken(self.made.pop(id(x)))

    def _taken(self, name: str, hop: int) -> torch.Tensor:
        """Return a group's input; intermediate results between hops are released here."""
        if hop == 0:
            return self.inputs[name, hop]
        tensor = self.inputs.pop((name, hop))
        del self.waiting[id(tensor)]
        return tensor


_FETCHING: ContextVar[Fetching | None] = ContextVar("fetching", default=None)


@contextmanager
def anew() -> Iterator[None]:
    """Use the same groups inside with nothing fetched yet: for a block that is recomputed."""
    before = _FETCHING.get()
    if before is None:
        yield
        return
    leaves = {name: x for (name, hop), x in before.inputs.items() if hop == 0}
    with fetching(before.group_of, leaves):
        yield


@contextmanager
def fetching(
    group_of: dict[tuple[str, int], Group], leaves: dict[str, torch.Tensor]
) -> Iterator[None]:
    """Run the forward of a program with grouped weights inside."""
    state = Fetching(group_of)
    for name, leaf in leaves.items():
        state.offer(name, 0, leaf)
    token = _FETCHING.set(state)
    try:
        yield
    finally:
        _FETCHING.reset(token)


def fetched(x: torch.Tensor, where: Axis, target: Type) -> torch.Tensor | None:
    """Return the gathered `x` if it belongs to a group; `convert` calls this first."""
    state = _FETCHING.get()
    return None if state is None else state.fetch(x, where, target)


def _remember(
    tensors: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    where: Axis,
    group: Group,
) -> None:
    """Let the backward gather all members that are not kept together, when it needs the first one."""
    chosen = [i for i, member in enumerate(group.members) if member.regather]
    sources = [source for i in chosen if isinstance(source := group.members[i].source, S)]
    regather.remember_together(
        [results[i] for i in chosen],
        [tensors[i] for i in chosen],
        lambda shards: _regather(shards, where, sources),
    )


def travel(tensors: Sequence[torch.Tensor], where: Axis, group: Group) -> list[torch.Tensor]:
    """Convert all weights of the group in one collective; differentiable."""
    reduce = None if group.reduce is None else getattr(torch, group.reduce)
    sources = tuple(m.source for m in group.members if isinstance(m.source, S))
    if sources:
        return list(_Gather.apply(where, sources, group.target, reduce, *tensors))
    return list(_Replicate.apply(where, reduce, *tensors))


def _regather(
    tensors: Sequence[torch.Tensor], where: Axis, sources: Sequence[S]
) -> list[torch.Tensor]:
    with named(label("regather", "", "all_gather", where.name)):
        return gather_again(tensors, where, sources)


def gather_again(
    tensors: Sequence[torch.Tensor], where: Axis, sources: Sequence[S]
) -> list[torch.Tensor]:
    """Gather without autograd, each weight into its own storage, so that none keeps another alive."""
    stacked = [tensor.new_empty((where.size, *tensor.shape)) for tensor in tensors]
    _torch.all_gather_many(stacked, tensors, where.group)
    return [
        stack.view(where.size, *_blocks(tensor.shape, source))
        .movedim(0, source.dim + 1)
        .reshape(_gathered(tensor.shape, source, where.size))
        for stack, tensor, source in zip(stacked, tensors, sources, strict=True)
    ]


def _blocks(shape: torch.Size, source: S) -> tuple[int, ...]:
    dim = source.dim
    return (*shape[:dim], source.of, shape[dim] // source.of, *shape[dim + 1 :])


def _gathered(shape: torch.Size, source: S, ranks: int) -> tuple[int, ...]:
    dim = source.dim
    return (*shape[:dim], shape[dim] * ranks, *shape[dim + 1 :])


class _Gather(torch.autograd.Function):
    """Several all-gathers as one; backward one reduce-scatter (to R) or each rank's slice (to I)."""

    @staticmethod
    def forward(
        ctx: Any,
        where: Axis,
        sources: tuple[S, ...],
        target: Type,
        reduce: torch.dtype | None,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.where, ctx.sources, ctx.target, ctx.reduce = where, sources, target, reduce
        ctx.shapes = [tensor.shape for tensor in tensors]
        ctx.set_materialize_grads(False)
        return tuple(gather_again(tensors, where, sources))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        # An unused weight has no gradient and gets none; no rank sends zeros for it.
        where: Axis = ctx.where
        every = list(zip(gradients, ctx.sources, ctx.shapes, strict=True))
        places = [(g, source, shape) for g, source, shape in every if g is not None]
        shapes = [shape for _, _, shape in places]
        apart = [_apart(gradient, source, shape, where) for gradient, source, shape in places]
        if ctx.target is R:
            mine = _summed(apart, shapes, where, ctx.reduce or apart[0].dtype)
        else:
            # Copies: a view would keep the whole gradient alive as long as its part.
            whole = torch.contiguous_format
            mine = [piece[where.rank].clone(memory_format=whole) for piece in apart]
        pairs = zip(mine, shapes, strict=True)
        parts = (piece.reshape(shape).to(apart[0].dtype) for piece, shape in pairs)
        return None, None, None, None, *(None if g is None else next(parts) for g in gradients)


def _summed(
    apart: Sequence[torch.Tensor], shapes: Sequence[torch.Size], where: Axis, dtype: torch.dtype
) -> Sequence[torch.Tensor]:
    """Reduce-scatter the gradients; return this rank's parts.

    Small ones are copied into one message, which costs less than many.  Large ones are copied only if
    they are not in rank order in memory.
    """
    if sum(piece.numel() * dtype.itemsize for piece in apart) > NBYTES:
        parts = [
            piece.new_empty(shape, dtype=dtype) for piece, shape in zip(apart, shapes, strict=True)
        ]
        _torch.reduce_scatter_many(parts, [piece.to(dtype) for piece in apart], where.group)
        return parts
    sizes = [shape.numel() for shape in shapes]
    flat = apart[0].new_empty((where.size, sum(sizes)), dtype=dtype)
    for place, piece in zip(flat.split(sizes, 1), apart, strict=True):
        place.view(piece.shape).copy_(piece)
    mine = flat.new_empty(flat.shape[1])
    _torch.reduce_scatter_single(mine, flat.view(-1), group=where.group)
    return list(mine.split(sizes))


class _Replicate(torch.autograd.Function):
    """Several conversions I -> R: no communication forward, one all-reduce backward."""

    @staticmethod
    def forward(
        ctx: Any, where: Axis, reduce: torch.dtype | None, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.where, ctx.reduce = where, reduce
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        there = [gradient for gradient in gradients if gradient is not None]
        dtype = there[0].dtype
        flat = torch.cat([gradient.reshape(-1) for gradient in there]).to(ctx.reduce or dtype)
        dist.all_reduce(flat, group=ctx.where.group)
        parts = flat.to(dtype).split([gradient.numel() for gradient in there])
        shaped = iter([part.view(g.shape) for part, g in zip(parts, there, strict=True)])
        return None, None, *(None if g is None else next(shaped) for g in gradients)


def _apart(gradient: torch.Tensor, source: S, shape: torch.Size, where: Axis) -> torch.Tensor:
    """View a whole gradient as ``[ranks, *shard]``, with the shard's blocks in a dim of their own."""
    dim = source.dim
    blocks = gradient.unflatten(dim, (source.of, where.size, shape[dim] // source.of))
    pieces: torch.Tensor = blocks.movedim(dim + 1, 0)
    return pieces
