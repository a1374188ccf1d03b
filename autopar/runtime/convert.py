"""Conversions in emitted code: each changes a tensor's placement type on one mesh axis.

Types are local to a rank: ``S(d, of=k)`` counts k blocks in the dim as it is on this rank without the
split over this axis.  A strided shard is turned into a plain one by a view: the dim is unflattened into
its blocks, the conversion acts on the dim behind them, and the view is undone.
"""

from __future__ import annotations

import torch

from autopar.errors import PlacementError
from autopar.ir.placement import I, P, S, Type
from autopar.runtime import _typed
from autopar.runtime.async_loss import late_sum
from autopar.runtime.coalesced import fetched
from autopar.runtime.context import Axis
from autopar.runtime.context import axis as axis_named
from autopar.runtime.named import label, named
from autopar.runtime.regather import remember


def convert(
    x: torch.Tensor,
    axis: str,
    source: Type,
    target: Type,
    regather: bool = False,
    reduce: torch.dtype | None = None,
) -> torch.Tensor:
    """Convert `x` from one placement type to another on a mesh axis; differentiable.

    With `regather`, the result of a gather is not kept for the backward, which gathers it again.  With
    `reduce`, gradients are summed in that dtype.
    """
    where = axis_named(axis)
    if where.size == 1:
        return x
    together = fetched(x, where, target)
    if together is not None:
        return together
    if x.dim() == 0 and (source, target) == (P, I):
        late = late_sum(x, where.group)
        if late is not None:
            return late
    made = _step(x, where.group, where.size, source, target, reduce)
    if regather:
        remember(made, x, lambda shard: _again(shard, where, source, target))
    return made


def _again(shard: torch.Tensor, where: Axis, source: Type, target: Type) -> torch.Tensor:
    with named(label("regather", "", "all_gather", where.name)):
        return _step(shard, where.group, where.size, source, target)


def _step(
    x: torch.Tensor,
    group: torch.distributed.ProcessGroup,
    size: int,
    source: Type,
    target: Type,
    reduce: torch.dtype | None = None,
) -> torch.Tensor:
    if isinstance(source, S) and isinstance(target, S):
        return _exchange(x, group, size, source, target)
    if isinstance(source, S):
        apart, plain = _unflatten(x, source)
        return _flatten(_typed.step(apart, group, plain, target, reduce), source)
    if isinstance(target, S):
        _divides(x, target, size)
        apart, plain = _unflatten(x, target)
        return _flatten(_typed.step(apart, group, source, plain, reduce), target)
    return _typed.step(x, group, source, target, reduce)


def _unflatten(x: torch.Tensor, shard: S) -> tuple[torch.Tensor, S]:
    """Return a view with the shard's blocks in a dim of their own, and the plain shard of that view."""
    if shard.of == 1:
        return x, shard
    return x.unflatten(shard.dim, (shard.of, -1)), S(shard.dim + 1)


def _flatten(x: torch.Tensor, shard: S) -> torch.Tensor:
    return x if shard.of == 1 else x.flatten(shard.dim, shard.dim + 1)


def _divides(x: torch.Tensor, shard: S, size: int) -> None:
    if x.shape[shard.dim] % (shard.of * size):
        raise PlacementError(
            f"dim {shard.dim} of a tensor of shape {tuple(x.shape)} cannot be split as {shard} over "
            f"{size} ranks."
        )


def _exchange(
    x: torch.Tensor, group: torch.distributed.ProcessGroup, size: int, source: S, target: S
) -> torch.Tensor:
    """Convert shard to shard by an all-to-all between two plain dims of a view."""
    if source.dim == target.dim:
        return _exchange_inside(x, group, size, source, target)
    _divides(x, target, size)
    if source.of == target.of == 1:
        return _typed.step(x, group, source, target)
    # The later dim is unflattened first, so that the index of the earlier one stays valid.
    shape = x.shape
    apart = x
    for shard in sorted((source, target), key=lambda s: -s.dim):
        apart = apart.unflatten(shard.dim, (shard.of, -1))
    shift = {min(source.dim, target.dim): 1, max(source.dim, target.dim): 2}
    plain = [S(shard.dim + shift[shard.dim]) for shard in (source, target)]
    moved = _typed.step(apart, group, plain[0], plain[1])
    sizes = list(shape)
    sizes[source.dim] *= size
    sizes[target.dim] //= size
    return moved.reshape(sizes)


def _exchange_inside(
    x: torch.Tensor, group: torch.distributed.ProcessGroup, size: int, source: S, target: S
) -> torch.Tensor:
    """Move the split within one dim, seen as [outer, size, middle, size, inner]: from one `size`
    dim to the other."""
    first, second = sorted((source.of, target.of))
    middle = second // (first * size)
    parts = (1, size) if source.of == first else (size, 1)
    dim = source.dim
    apart = x.unflatten(dim, (first, parts[0], middle, parts[1], -1))
    early, late = S(dim + 1), S(dim + 3)
    ends = (early, late) if source.of == first else (late, early)
    return _typed.step(apart, group, *ends).reshape(x.shape)


all_gather = all_reduce = reduce_scatter = all_to_all = convert
shard = replicate = invariant = partial = convert
