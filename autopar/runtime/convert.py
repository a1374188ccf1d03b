"""Conversions in emitted code: each changes a tensor's placement type on one mesh axis.

Types are local to a rank: ``S(d, of=k)`` counts k blocks in the dim as it is on this rank without the
split over this axis.  A conversion is differentiable: its gradient is the conversion back, between the
types that the gradients of both ends have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch

from autopar.errors import PlacementError
from autopar.ir.collectives import COLLECTIVES, own
from autopar.ir.placement import I, P, R, S, Type, dual
from autopar.runtime import kernels
from autopar.runtime.added_collectives import run_added
from autopar.runtime.ahead import Ahead
from autopar.runtime.async_loss import late_sum
from autopar.runtime.axes import Axis
from autopar.runtime.kernels import Started
from autopar.runtime.late import Lane
from autopar.runtime.named import label, named
from autopar.runtime.regather import remember
from autopar.runtime.selective import kept_reduction

Row = tuple[torch.Tensor, Type, Literal["keep", "regather"]]
"""A weight, its type, and whether the result is kept for the backward or gathered again there."""


def convert(
    x: torch.Tensor,
    axis: Axis,
    source: Type,
    target: Type,
    regather: bool = False,
    reduce: torch.dtype | None = None,
    keep: bool = False,
    forward: str = "",
    backward: str = "",
) -> torch.Tensor:
    """Convert `x` from one placement type to another on a mesh axis; differentiable.

    With `regather`, the result of a gather is not kept for the backward, which gathers it again.  With
    `reduce`, gradients are summed in that dtype.  With `keep`, selective recomputation keeps this
    reduction in place of the partial sum `x`.  `forward` and `backward` are added collectives that
    convert instead of autopar's own.
    """
    if axis.size == 1:
        return x
    is_loss = x.dim() == 0 and (source, target) == (P, I) and not forward
    if is_loss and not torch.compiler.is_compiling():
        late = late_sum(x, axis.group)
        if late is not None:
            return late
    keep = keep and not torch.compiler.is_compiling()
    made = _converted(x, axis, source, target, reduce, forward, backward, keep)
    if regather and not torch.compiler.is_compiling():
        remember([made], [x], partial(_again, axis, [source]))
    return made


def start_gather(axis: Axis, *weights: tuple[torch.Tensor, S]) -> Started:
    """Start to gather a block's weights, for `convert_together` to finish."""
    with torch.no_grad(), named(label("prefetch", "", "all_gather", axis.name)):
        return Started.of([x for x, _ in weights], [shard for _, shard in weights], axis)


def convert_together(
    axis: Axis,
    target: Type,
    *weights: Row,
    reduce: torch.dtype | None = None,
    ahead: Ahead | None = None,
) -> tuple[torch.Tensor, ...]:
    """Convert the weights of a block in one collective, and their gradients in one.

    All are gathered, or all are replicated.  The backward gathers those marked "regather" again, in one
    collective too.  `ahead` may have started the gather.
    """
    xs = [x for x, _, _ in weights]
    if axis.size == 1:
        return tuple(xs)
    sources = tuple(source for _, source, _ in weights)
    started, lane = (None, None) if ahead is None else (ahead.take(), ahead.lane)
    made: tuple[torch.Tensor, ...] = _Together.apply(
        axis, sources, target, reduce, started, lane, *xs
    )
    again = [i for i, (_, _, kept) in enumerate(weights) if kept == "regather"]
    if again and not torch.compiler.is_compiling():
        shards = [sources[i] for i in again]
        gathers = remember(
            [made[i] for i in again],
            [xs[i] for i in again],
            partial(_again, axis, shards),
        )
        if ahead is not None and gathers is not None:
            ahead.remember(gathers)
    return made


def _again(
    axis: Axis, sources: Sequence[Type], shards: Sequence[torch.Tensor]
) -> Callable[[], list[torch.Tensor]]:
    with named(label("regather", "", "all_gather", axis.name)):
        return Started.of(shards, sources, axis).finish  # type: ignore[arg-type]


def _converted(
    x: torch.Tensor,
    axis: Axis,
    source: Type,
    target: Type,
    reduce: torch.dtype | None,
    forward: str,
    backward: str,
    keep: bool = False,
) -> torch.Tensor:
    if x.requires_grad and torch.is_grad_enabled():
        return _Convert.apply(x, axis, source, target, reduce, forward, backward, keep)  # type: ignore[no-any-return]
    return _stepped(x, axis, source, target, forward, keep)


def _stepped(
    x: torch.Tensor, axis: Axis, source: Type, target: Type, forward: str, keep: bool
) -> torch.Tensor:
    if not keep:
        return step(x, axis, source, target, forward)
    return kept_reduction(x, lambda: step(x, axis, source, target, forward))


class _Convert(torch.autograd.Function):
    """A conversion and, backward, the conversion of the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        axis: Axis,
        source: Type,
        target: Type,
        reduce: torch.dtype | None,
        forward: str,
        backward: str,
        keep: bool,
    ) -> torch.Tensor:
        ctx.axis, ctx.source, ctx.target, ctx.reduce = axis, source, target, reduce
        ctx.forward_by, ctx.backward_by = forward, backward
        made = _stepped(x, axis, source, target, forward, keep)
        return x.view_as(x) if made is x else made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        wide = gradient if ctx.reduce is None else gradient.to(ctx.reduce)
        ends = dual(ctx.target), dual(ctx.source)
        made = _converted(wide, ctx.axis, *ends, ctx.reduce, ctx.backward_by, ctx.forward_by)
        return made.to(gradient.dtype), *(None,) * 7


class _Together(torch.autograd.Function):
    """Several gathers, or several replications, as one; backward one reduction, or slices."""

    @staticmethod
    def forward(
        ctx: Any,
        axis: Axis,
        sources: tuple[Type, ...],
        target: Type,
        reduce: torch.dtype | None,
        started: Started | None,
        lane: Lane | None,
        *xs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.axis, ctx.sources, ctx.target, ctx.reduce = axis, sources, target, reduce
        ctx.lane = lane
        ctx.set_materialize_grads(False)
        if started is not None:
            return tuple(started.finish())
        if isinstance(sources[0], S):
            return tuple(kernels.all_gather(xs, sources, axis))  # type: ignore[arg-type]
        return tuple(x.view_as(x) for x in xs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        # An unused weight has no gradient and gets none; no rank sends zeros for it.
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        given = [gradients[i] for i in there]
        wide = [g if ctx.reduce is None else g.to(ctx.reduce) for g in given]  # type: ignore[union-attr]
        sources = [ctx.sources[i] for i in there]
        if not isinstance(ctx.sources[0], S):
            mine = kernels.all_reduce(wide, ctx.axis)  # type: ignore[arg-type]
        elif ctx.target is R and ctx.lane is not None and ctx.reduce is None:
            ctx.lane.enter()
            mine, pending = kernels.start_reduce_scatter(wide, sources, ctx.axis)  # type: ignore[arg-type]
            ctx.lane.put(pending)
            return None, None, None, None, None, None, *_placed(mine, there, len(gradients))
        elif ctx.target is R:
            mine = kernels.reduce_scatter(wide, sources, ctx.axis)  # type: ignore[arg-type]
        else:
            mine = [kernels.part(g, s, ctx.axis) for g, s in zip(wide, sources, strict=True)]  # type: ignore[arg-type]
        narrow = [m.to(g.dtype) for g, m in zip(given, mine, strict=True)]  # type: ignore[union-attr]
        return None, None, None, None, None, None, *_placed(narrow, there, len(gradients))


def _placed(
    made: Sequence[torch.Tensor], there: Sequence[int], count: int
) -> list[torch.Tensor | None]:
    found: list[torch.Tensor | None] = [None] * count
    for place, each in zip(there, made, strict=True):
        found[place] = each
    return found


def step(x: torch.Tensor, axis: Axis, source: Type, target: Type, added: str = "") -> torch.Tensor:
    """Convert without a gradient, by an added collective if one is named.

    Returns `x` itself where its values stay.
    """
    if isinstance(target, S) and not isinstance(source, S):
        _check_divides(x, target, axis.size)
    run = _RUN.get(own(source, target))
    if run is None:
        return x
    return run_added(added, x, axis, source, target, run) if added else run(x, axis, source, target)


def _check_divides(x: torch.Tensor, shard: S, size: int) -> None:
    if x.shape[shard.dim] % (shard.of * size):
        raise PlacementError(
            f"dim {shard.dim} of a tensor of shape {tuple(x.shape)} cannot be split as {shard} over "
            f"{size} ranks."
        )


def _exchange(x: torch.Tensor, axis: Axis, source: S, target: S) -> torch.Tensor:
    """Convert shard to shard by an all-to-all between two plain dims of a view.

    A strided shard is turned into a plain one by a view: the dim is unflattened into its blocks, the
    all-to-all acts on the dim behind them, and the view is undone.
    """
    if source.dim == target.dim:
        return _exchange_inside(x, axis, source, target)
    _check_divides(x, target, axis.size)
    # The later dim is unflattened first, so that the index of the earlier one stays valid.
    apart = x
    for shard in sorted((source, target), key=lambda s: -s.dim):
        apart = apart.unflatten(shard.dim, (shard.of, -1))
    shift = {min(source.dim, target.dim): 1, max(source.dim, target.dim): 2}
    moved = kernels.all_to_all(
        apart, source.dim + shift[source.dim], target.dim + shift[target.dim], axis
    )
    sizes = list(x.shape)
    sizes[source.dim] *= axis.size
    sizes[target.dim] //= axis.size
    return moved.reshape(sizes)


def _exchange_inside(x: torch.Tensor, axis: Axis, source: S, target: S) -> torch.Tensor:
    """Move the split within one dim, seen as [outer, size, middle, size, inner]: from one `size`
    dim to the other."""
    size, dim = axis.size, source.dim
    first, second = sorted((source.of, target.of))
    middle = second // (first * size)
    parts = (1, size) if source.of == first else (size, 1)
    apart = x.unflatten(dim, (first, parts[0], middle, parts[1], -1))
    ends = (dim + 1, dim + 3) if source.of == first else (dim + 3, dim + 1)
    return kernels.all_to_all(apart, *ends, axis).reshape(x.shape)


def _partial(x: torch.Tensor, axis: Axis, source: Type, target: Type) -> torch.Tensor:
    return kernels.zero_pad(x, source, axis) if isinstance(source, S) else kernels.on_first(x, axis)


_RUN: dict[str, Callable[..., Any]] = {
    "all_gather": lambda x, axis, source, _: kernels.all_gather([x], [source], axis)[0],
    "reduce_scatter": lambda x, axis, _, target: kernels.reduce_scatter([x], [target], axis)[0],
    "all_reduce": lambda x, axis, *_: kernels.all_reduce([x], axis)[0],
    "all_to_all": _exchange,
    "shard": lambda x, axis, _, target: kernels.part(x, target, axis),
    "partial": _partial,
}
"""What autopar's collectives run; the values of others stay."""
all_gather_together = replicate_together = convert_together


def named_collective(name: str) -> Callable[..., torch.Tensor]:
    """Return a collective as emitted code calls it; autopar's own are chosen by the types."""
    return convert if COLLECTIVES[name].run is None else partial(convert, forward=name)
