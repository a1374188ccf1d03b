"""Translates ``as_strided``, whose strides are those of one process, to any memory layout of a rank.

``as_strided`` reads memory, and a rank's tensors are laid out differently (a gathered tensor is
row-major). Therefore the dims of its operand are permuted to the order that they have in memory. In
the row-major result, the same strides read the same entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

STRIDED = "aten.as_strided.default"


@dataclass(frozen=True)
class Window:
    """Arguments of ``strided(x.permute(order), size, stride, offset)``, with x in row-major order."""

    order: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def window(
    x: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int | None
) -> Window | None:
    """Return the window, or None if it reads memory outside of the tensor."""
    # Dims of size 1 may have any stride. Any other dim must step over all dims inside it.
    strides = x.stride()
    order = tuple(sorted(range(x.dim()), key=lambda dim: (x.shape[dim] > 1, -strides[dim])))
    step = 1
    for dim in reversed(order):
        if x.shape[dim] > 1 and strides[dim] != step:
            return None
        step *= x.shape[dim]
    start = int(x.storage_offset())
    first = 0 if offset is None else offset - start
    last = first + sum((count - 1) * jump for count, jump in zip(size, stride, strict=True))
    if first < 0 or last >= x.numel():
        return None
    return Window(order, size, stride, first)
