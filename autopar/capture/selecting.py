"""Replaces functions whose result sizes depend on known values by operators of that size.

Values are known if they follow from shapes and constants, and in part if they are those of buffers.
The number of entries that a mask selects may be stored in a graph if the step checks it
(`autopar.ops.selections`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from autopar.capture import _torch
from autopar.capture.known import likely

Answer = Callable[..., Any]
_static: Any = torch.ops.autopar_static
CTC = (F.ctc_loss, torch.ctc_loss)
REDUCTIONS = ("none", "mean", "sum")
"""In the order of torch's codes for them."""


class Selections:
    """Returns the results of functions in one trace; `NotImplemented` leaves a function to torch."""

    def __init__(self) -> None:
        self._flat: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        """Labels selected by a mask, whose number is not known, with all labels and the mask; by id."""

    def answer(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the function's result."""
        if self._flat:
            self._check(func, (args, kwargs))
        if func in CTC:
            return self._ctc_loss(*args, **kwargs)
        if func in (torch.masked_select, torch.Tensor.masked_select):
            return self._masked_select(*args, **kwargs)
        found = ANSWERS.get(func)
        return NotImplemented if found is None else found(*args, **kwargs)

    def _check(self, func: Any, given: Any) -> None:
        """Raise if another function than a CTC loss reads selected labels."""
        for value in _torch.tree_leaves(given):
            if id(value) in self._flat and func not in CTC:
                _, labels, mask = self._flat[id(value)]
                torch.masked_select(labels, mask)  # raises, because the number is not known

    def _masked_select(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        values = likely(mask)
        if values is not None and mask.dim():
            x, mask = torch.broadcast_tensors(x, mask)
            places = _places(mask)
            return NotImplemented if places is None else x[places]
        if x.is_floating_point() or x.dim() != 2 or x.shape != mask.shape:
            return NotImplemented
        with _torch.untraced():
            flat = x.new_empty(x.numel())
        self._flat[id(flat)] = (flat, x, mask)
        return flat

    def _ctc_loss(
        self,
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: str | int = "mean",
        zero_infinity: bool = False,
    ) -> torch.Tensor:
        """Return the operator of the losses of each sample, followed by their reduction."""
        _, targets, selected = self._flat.get(id(targets), (None, targets, None))
        lengths = [_lengths(each, log_probs) for each in (input_lengths, target_lengths)]
        single = log_probs.dim() == 2
        if single:
            log_probs, lengths = log_probs[:, None], [each.reshape(1) for each in lengths]
            targets = targets[None] if targets.dim() == 1 else targets
        losses: torch.Tensor = _static.ctc_loss(
            log_probs, targets, selected, *lengths, blank, zero_infinity
        )
        if REDUCTIONS.index(reduction) == 0 if isinstance(reduction, str) else reduction == 0:
            return losses[0] if single else losses
        if reduction in ("sum", 2):
            return losses.sum()
        return (losses / lengths[1].clamp(min=1).to(losses.dtype)).mean()


def _lengths(given: Any, like: torch.Tensor) -> torch.Tensor:
    return given if isinstance(given, torch.Tensor) else torch.tensor(given, device=like.device)


def _places(mask: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
    """Return where a mask is true, one tensor per dim; None if the number of places is not known."""
    values = likely(mask)
    if values is None:
        return None
    with _torch.untraced(), _torch.unfaked():
        count = int(values.sum())
    found: tuple[torch.Tensor, ...] = _static.nonzero(mask, count).unbind(1)
    return found


def _mask(part: Any) -> torch.Tensor | None:
    """Return a part of an index as a boolean mask; None if it is none."""
    if isinstance(part, torch.Tensor):
        return part if part.dtype == torch.bool and part.dim() else None
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(part, numpy.ndarray) and part.dtype == bool:
        part = part.tolist()
    booleans = isinstance(part, list) and part and all(isinstance(item, bool) for item in part)
    return torch.tensor(part) if booleans else None


def _getitem(x: Any, index: Any) -> Any:
    parts = index if isinstance(index, tuple) else (index,)
    masks = [_mask(part) for part in parts]
    if all(mask is None for mask in masks):
        return NotImplemented
    taken: list[Any] = []
    for part, mask in zip(parts, masks, strict=True):
        places = [part] if mask is None else _places(mask)
        if places is None:
            return NotImplemented
        taken += places
    return x[tuple(taken)]


def _as_mask(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.bool else x != 0


def _nonzero(x: torch.Tensor, *, as_tuple: bool = False) -> Any:
    places = _places(_as_mask(x)) if x.dim() and likely(x) is not None else None
    if places is None:
        return NotImplemented
    return places if as_tuple else torch.stack(places, 1)


def _where(condition: torch.Tensor, *others: Any, **more: Any) -> Any:
    return NotImplemented if others or more else _nonzero(condition, as_tuple=True)


def _repeat_interleave(
    x: torch.Tensor,
    repeats: Any = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> Any:
    counts = x if repeats is None else repeats
    if not isinstance(counts, torch.Tensor) or counts.dim() > 1:
        return NotImplemented
    if repeats is not None:
        known = _torch.known_value(counts)
        if counts.numel() == 1 and known is not None:
            return torch.repeat_interleave(x, int(known), dim, output_size=output_size)
        x, dim = (x.flatten(), 0) if dim is None else (x, dim)
        counts = counts.expand(x.shape[dim]) if counts.numel() == 1 else counts
    values = likely(counts)
    if values is not None and output_size is None:
        with _torch.untraced(), _torch.unfaked():
            output_size = int(values.sum())
    if output_size is None:
        return NotImplemented
    places = _static.repeats(counts, output_size)
    return places if repeats is None else x.index_select(dim or 0, places)


def _tensor(data: Any, *, dtype: Any = None, **_: Any) -> Any:
    """Copy a traced tensor that is passed to ``torch.tensor``."""
    if not _torch.is_fake(data):
        return NotImplemented
    return data.detach().clone() if dtype is None else data.detach().to(dtype, copy=True)


def _of_constants(function: Any) -> Answer:
    """Return an answer that computes with constants: their result is a constant."""

    def answer(*args: Any, **kwargs: Any) -> Any:
        given = args, kwargs
        tensors = [x for x in _torch.tree_leaves(given) if isinstance(x, torch.Tensor)]
        if not tensors or any(_torch.known_value(x) is None for x in tensors):
            return NotImplemented
        args, kwargs = _torch.tree_map(_value, (list(args), kwargs))
        with _torch.untraced(), _torch.unfaked():
            return function(*args, **kwargs)

    return answer


def _value(leaf: Any) -> Any:
    return _torch.known_value(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """Compute the loss as torch does, without its check whether a variance is negative."""
    if not isinstance(var, torch.Tensor) or input.shape != var.shape:
        return NotImplemented
    floor = var.detach().clamp(min=eps) - var.detach()
    var = var + floor  # gradients pass below the minimum variance as well
    loss = 0.5 * (var.log() + (input - target).square() / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


COUNTED: Sequence[Any] = (
    torch.unique, torch.Tensor.unique, torch.unique_consecutive, torch.Tensor.unique_consecutive,
    torch.bincount, torch.Tensor.bincount, torch.combinations, torch.histc, torch.Tensor.histc,
)  # fmt: skip
"""Functions that are answered for constants, because the size of their result depends on values."""
ANSWERS: dict[Any, Answer] = {
    torch.Tensor.__getitem__: _getitem,
    torch.nonzero: _nonzero,
    torch.Tensor.nonzero: _nonzero,
    torch.argwhere: _nonzero,
    torch.Tensor.argwhere: _nonzero,
    torch.where: _where,
    torch.tensor: _tensor,
    F.gaussian_nll_loss: _gaussian_nll_loss,
    torch.repeat_interleave: _repeat_interleave,
    torch.Tensor.repeat_interleave: _repeat_interleave,
    **{function: _of_constants(function) for function in COUNTED},
}
