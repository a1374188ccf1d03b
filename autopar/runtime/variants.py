"""Local operator implementations that some shardings need; each issues its declared collectives only."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from autopar.ops.experts import routed_experts
from autopar.ops.operators import batch_norm, count_valid, cross_entropy_sum, strided
from autopar.runtime.axes import Axis
from autopar.runtime.dispatch import expert_dispatch
from autopar.runtime.ranges import check_range, padded_embedding
from autopar.runtime.ring_attention import ring_attention
from autopar.runtime.sequence_attention import sequence_parallel_attention


def vocab_parallel_embedding(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    *_: Any,
    rows: int | None = None,
    axis: Axis,
) -> torch.Tensor:
    """Look up the rows that this rank holds, zeros for the others: the sum over ranks is the embedding.

    Counted over all ranks, rows after the first `rows` are padding.
    """
    held = weight.shape[0]
    every = held * axis.size if rows is None else rows
    table = [every, *weight.shape[1:]]
    check_range(indices, every, f"vocab_parallel_embedding (table of shape {table}): id")
    local = indices - axis.rank * held
    mine = (local >= 0) & (local < held)
    if padding_idx >= 0:
        # The row of padding_idx gets no gradient; its value is still used.
        frozen = F.embedding(local.clamp(0, held - 1), weight.detach())
        trained = F.embedding(local.clamp(0, held - 1), weight)
        picked = torch.where((indices == padding_idx).unsqueeze(-1), frozen, trained)
    else:
        picked = F.embedding(local.clamp(0, held - 1), weight)
    return picked * mine.unsqueeze(-1).to(weight.dtype)


def expert_parallel(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
    *rest: Any,
    axis: Axis,
) -> torch.Tensor:
    """Run this rank's experts only: the result is a partial sum of the mixture over ranks.

    `rest` are `routed_experts`' biases and constants.
    """
    first = axis.rank * up.shape[0]
    made: torch.Tensor = routed_experts(
        x, chosen.long() - first, weights, up, down, activation, *rest
    )
    return made


class _CrossEntropy(torch.autograd.Function):
    """Sum of cross-entropies over sharded classes; the gradient needs no communication."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target: torch.Tensor,
        group: dist.ProcessGroup,
        first: int,
        classes: int,
        ignore_index: int,
        smoothing: float,
    ) -> torch.Tensor:
        padded = logits.shape[1]
        logits = logits[:, : max(classes - first, 0)]
        highest = _highest(logits)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        exponentials = (logits - highest[:, None]).exp()
        valid = target != ignore_index
        local = target - first
        mine = (local >= 0) & (local < logits.shape[1]) & valid
        index = local.clamp(0, max(logits.shape[1] - 1, 0))[:, None]
        picked = (
            logits.gather(1, index)[:, 0] * mine if logits.shape[1] else torch.zeros_like(highest)
        )
        sums = [exponentials.sum(1), picked]
        if smoothing:
            sums.append(logits.sum(1))
        stacked = torch.stack(sums)
        dist.all_reduce(stacked, group=group)
        log_sum = stacked[0].log() + highest
        losses = (1 - smoothing) * (log_sum - stacked[1])
        if smoothing:
            losses = losses + smoothing * (log_sum - stacked[2] / classes)
        ctx.save_for_backward(exponentials.div_(stacked[0][:, None]), index, mine, valid)
        ctx.smoothing, ctx.classes, ctx.padded = smoothing, classes, padded
        return (losses * valid).sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        softmax, index, mine, valid = ctx.saved_tensors
        hit = torch.zeros_like(softmax)
        if softmax.shape[1]:
            hit.scatter_(1, index, mine[:, None].to(softmax.dtype))
        wanted = (1 - ctx.smoothing) * hit + ctx.smoothing / ctx.classes
        of_logits = ((softmax - wanted) * valid[:, None]) * gradient
        return F.pad(of_logits, (0, ctx.padded - softmax.shape[1])), *(None,) * 6


def _highest(logits: torch.Tensor) -> torch.Tensor:
    """Return the largest logit of each row, -inf if this rank has no classes."""
    return logits.amax(1) if logits.shape[1] else logits.new_full(logits.shape[:1], -math.inf)


def vocab_parallel_cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    classes: int | None = None,
    *,
    axis: Axis,
) -> torch.Tensor:
    """`cross_entropy_sum` of logits [n, classes] with classes sharded over `axis`; equal on all ranks.

    Counted over all ranks, logits after the first `classes` are padding.
    """
    _refuse_kinds(logits, target)
    # In uint8, `target - first` would wrap around to a class of this rank.
    target = target.long()
    local = logits.shape[1]
    every = local * axis.size if classes is None else classes
    what = f"vocab_parallel_cross_entropy ({every} classes): target"
    check_range(target, every, what, ignored=ignore_index)
    return _CrossEntropy.apply(  # type: ignore[no-any-return]
        logits, target, axis.group, axis.rank * local, every, ignore_index, label_smoothing
    )


class _BatchNorm(torch.autograd.Function):
    """Normalises by sums over all ranks; saves the same tensors as `F.batch_norm`: input and weight."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        group: dist.ProcessGroup,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        dims, channels = _but_channels(x), x.shape[1]
        count = wide.new_full((1,), x.numel() / channels)
        totals = torch.cat([wide.sum(dims), (wide * wide).sum(dims), count])
        dist.all_reduce(totals, group=group)
        number = totals[-1]
        mean = totals[:channels] / number
        variance = totals[channels:-1] / number - mean * mean
        scale = torch.rsqrt(variance + eps)
        y = wide - _along(mean, x)
        y *= _along(scale, x)
        if weight is not None:
            y *= _along(weight, x)
        if bias is not None:
            y += _along(bias, x)
        ctx.save_for_backward(x, weight, mean, scale, number)
        ctx.group = group
        ctx.mark_non_differentiable(mean, variance, number)
        return y.to(x.dtype), mean, variance, number

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        x, weight, mean, scale, number = ctx.saved_tensors
        given, wide = gradient.to(mean.dtype), x.to(mean.dtype)
        # The kernel sums without materialising products, so peak memory is that of one rank.
        _, along, total = torch.ops.aten.native_batch_norm_backward(
            *_alike(given, wide), None, None, None, mean, scale, True, 0.0, [False, True, True]
        )
        of_weight = along.to(weight.dtype) if weight is not None else None
        of_bias = total.to(gradient.dtype) if ctx.needs_input_grad[2] else None
        if not ctx.needs_input_grad[0]:
            return None, of_weight, of_bias, None, None
        sums = torch.stack([total, along])
        dist.all_reduce(sums, group=ctx.group)
        total, along = sums / number
        factor = scale if weight is None else scale * weight
        change = wide - _along(mean, x)
        change *= _along(-factor * scale * along, x)
        change.addcmul_(given, _along(factor, x))
        change -= _along(factor * total, x)
        return change.to(x.dtype), of_weight, of_bias, None, None


def _alike(given: torch.Tensor, wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both in one memory format that the kernel supports; for others its sums are wrong."""
    formats = [torch.contiguous_format]
    formats += {4: [torch.channels_last], 5: [torch.channels_last_3d]}.get(wide.dim(), [])
    kept = next((f for f in formats if wide.is_contiguous(memory_format=f)), formats[0])
    return given.contiguous(memory_format=kept), wide.contiguous(memory_format=kept)


def _but_channels(x: torch.Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _along(channels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """View one value per channel so that it broadcasts against `x`."""
    return channels.view(1, -1, *(1,) * (x.dim() - 2))


def _refuse_kinds(logits: torch.Tensor, target: torch.Tensor) -> None:
    """Raise `TypeError` for dtypes that `F.cross_entropy` does not take either."""
    if not logits.is_floating_point():
        raise TypeError(
            f"The cross-entropy has logits of {logits.dtype}; in one process F.cross_entropy "
            "takes floating-point numbers only. Cast them before the loss: logits.float()."
        )
    if target.dtype not in (torch.int64, torch.uint8):
        raise TypeError(
            f"The cross-entropy has targets of {target.dtype}; in one process F.cross_entropy "
            "takes torch.int64 and torch.uint8 only. Cast them before the loss: target.long()."
        )


def sync_batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
    *,
    axis: Axis,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Batch norm of a batch sharded over `axis`, with the statistics of the whole batch."""
    y, mean, variance, number = _BatchNorm.apply(x, weight, bias, eps, axis.group)
    unbiased = variance * (number / (number - 1))
    new_mean = torch.lerp(running_mean, mean.to(running_mean.dtype), momentum)
    new_var = torch.lerp(running_var, unbiased.to(running_var.dtype), momentum)
    return y, new_mean, new_var


__all__ = [
    "batch_norm", "count_valid", "cross_entropy_sum", "expert_dispatch", "expert_parallel",
    "padded_embedding", "ring_attention", "routed_experts", "sequence_parallel_attention", "strided",
    "sync_batch_norm",
    "vocab_parallel_cross_entropy", "vocab_parallel_embedding",
]  # fmt: skip
