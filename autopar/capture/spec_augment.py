"""SpecAugment of `transformers` with random numbers from torch: a graph would freeze NumPy's.

The spans have the same distribution: the same number of spans of one length, at any place, no two
at the same place.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch
import torch.nn.functional as F

NAME = "_compute_mask_indices"


@contextlib.contextmanager
def spans_drawn_by_torch() -> Iterator[None]:
    """Within the context, every model of the library that masks spans uses `masked_spans`."""
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.models.") and NAME in vars(module)
    ]
    before = [getattr(module, NAME) for module in modules]
    for module in modules:
        setattr(module, NAME, masked_spans)
    try:
        yield
    finally:
        for module, original in zip(modules, before, strict=True):
            setattr(module, NAME, original)


def masked_spans(
    shape: tuple[int, int],
    mask_prob: float,
    mask_length: int,
    attention_mask: torch.Tensor | None = None,
    min_masks: int = 0,
) -> torch.Tensor:
    """Return a mask of random spans for each row, in its first ``attention_mask.sum(-1)`` entries."""
    rows, length = shape
    if not 1 <= mask_length <= length:
        raise ValueError(f"mask_length must be between 1 and {length}, not {mask_length}")
    device = None if attention_mask is None else attention_mask.device
    lengths = torch.full((rows,), length, device=device)
    if attention_mask is not None:
        lengths = attention_mask.detach().sum(-1)
    rounding = torch.rand((), device=device)

    def counts(of: torch.Tensor) -> torch.Tensor:
        wanted = (mask_prob * of / mask_length + rounding).floor().long().clamp(min=min_masks)
        return wanted.clamp(max=length // mask_length).minimum((of - mask_length + 1).clamp(min=0))

    taken, most = counts(lengths), counts(torch.full((), length, device=device))
    places = torch.arange(length, device=device)
    fits = places < (lengths - mask_length + 1)[:, None]
    order = (
        torch.rand(rows, length, device=device).masked_fill(~fits, -1.0).argsort(1, descending=True)
    )
    starts = (order.argsort(1) < taken[:, None]) & fits
    begun = starts.long().cumsum(1)
    spans = begun > F.pad(begun, (mask_length, 0))[:, :length]
    # The last entry of a row too short for a span is masked. It is padding.
    padding = ((taken == 0) & (most > 0))[:, None] & (places == length - 1)
    return spans | padding
