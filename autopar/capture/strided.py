"""Strides in the user's code are those of one process: what they mean, whatever layout a rank has.

``as_strided`` reads memory, and a rank's tensors lie otherwise (a gathered tensor is row-major).  So its
operand's dims are put into the order in which they lie in memory; of the result in row-major order the
same strides read the same entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

STRIDED = "aten.as_strided.default"


@dataclass(frozen=True)
class Window:
    """``strided(x.permute(order), size, stride, offset)``, with x in row-major order."""

    order: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def window(
    x: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int | None
) -> Window | None:
    """None where it reads memory that is not the tensor's own."""
    # Dims of one entry lie anywhere; of the others each step is over all that lies within.
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
