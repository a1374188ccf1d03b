"""Operators whose size or work depends on values, with a size that is fixed at capture.

``nonzero`` and ``repeat_interleave`` of a buffer or a constant return the same number of places in
every step. If a buffer changes so that they do not, the step raises `InputError`. ``ctc_loss``
reads lengths while it runs. One operator can contain that, because each sample has one loss.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from autopar.errors import InputError


@torch.library.custom_op("autopar_static::nonzero", mutates_args=())
def nonzero(mask: torch.Tensor, size: int) -> torch.Tensor:
    """Return the places [size, dims] of all nonzero entries; raise `InputError` for another size."""
    return _of_size(mask.nonzero(), size, f"A mask of shape {tuple(mask.shape)} selects")


@torch.library.custom_op("autopar_static::repeats", mutates_args=())
def repeats(counts: torch.Tensor, size: int) -> torch.Tensor:
    """Return each place as often as its entry says [size]; raise `InputError` for another size."""
    what = f"Repeats of shape {tuple(counts.shape)} add up to"
    return _of_size(torch.repeat_interleave(counts), size, what)


def _of_size(places: torch.Tensor, size: int, what: str) -> torch.Tensor:
    if places.shape[0] != size:
        raise InputError(
            f"{what} {places.shape[0]} entries, {size} when the model was captured. A captured "
            "graph has one shape: keep the number unchanged, call parallelize again after a "
            "buffer has changed, or multiply by the mask (torch.where) instead of selecting by "
            "it."
        )
    return places


@torch.library.custom_op("autopar_static::ctc_loss", mutates_args=())
def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    selected: torch.Tensor | None,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> torch.Tensor:
    """Return the loss of each sample [n] of log_probs [t, n, c], for all or the `selected` targets."""
    return F.ctc_loss(
        log_probs,
        targets if selected is None else targets.masked_select(selected),
        input_lengths,
        target_lengths,
        blank,
        "none",
        zero_infinity,
    )


@torch.library.custom_op("autopar_static::ctc_loss_backward", mutates_args=())
def _ctc_loss_backward(
    gradient: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    selected: torch.Tensor | None,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> torch.Tensor:
    """Return the gradient of log_probs."""
    chosen = targets if selected is None else targets.masked_select(selected)
    lengths = input_lengths.tolist(), target_lengths.tolist()
    aten: Any = torch.ops.aten
    losses, alpha = aten._ctc_loss(log_probs, chosen, *lengths, blank, zero_infinity)
    made: torch.Tensor = aten._ctc_loss_backward(
        gradient, log_probs, chosen, *lengths, losses, alpha, blank, zero_infinity
    )
    return made


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.blank, ctx.zero_infinity = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradient: torch.Tensor) -> Any:
    made = _ctc_loss_backward(gradient, *ctx.saved_tensors, ctx.blank, ctx.zero_infinity)
    return made, None, None, None, None, None, None


nonzero.register_fake(lambda mask, size: mask.new_empty((size, mask.dim()), dtype=torch.int64))
repeats.register_fake(lambda counts, size: counts.new_empty((size,), dtype=torch.int64))
ctc_loss.register_fake(lambda log_probs, *_: log_probs.new_empty(log_probs.shape[1]))
_ctc_loss_backward.register_fake(lambda gradient, log_probs, *_: torch.empty_like(log_probs))
ctc_loss.register_autograd(_backward, setup_context=_keep)
