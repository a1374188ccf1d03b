"""Sums gradients that travel as one byte per element, with a scale for each block of elements.

Each rank sends every other rank the bytes of the part that this one adds up (an all-to-all), and the
sums travel as bytes again (an all-gather), unless the sum is scattered.  Rounding twice, a rank leaves
out what its own bytes lack, and what the bytes of the part that it added up lack.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import torch
import torch.distributed as dist

from autopar.plans.compressed_messages import BLOCK, SCALE_NBYTES
from autopar.runtime import _torch
from autopar.runtime.axes import Axis

LARGEST = {"int8": 127.0, "fp8": 448.0}
"""The largest number of each format; fp8 is float8_e4m3fn."""


class BytewiseSum:
    """Sums a bucket over one axis; the part that each rank adds up consists of whole blocks.

    `sizes` are the lengths of its gradients in the last dim.
    """

    def __init__(self, sizes: Sequence[int], form: Literal["int8", "fp8"]) -> None:
        self._form = form
        ends = itertools.accumulate(sizes)
        self._places = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        self._left_out: torch.Tensor | None = None
        self._new: torch.Tensor | None = None

    def run(
        self, current: torch.Tensor, axis: Axis, scatters: bool, unused: Collection[int]
    ) -> Iterator[dist.Work]:
        """Add `current` up over the axis, as `CompressedSum` says."""
        rows = current.view(axis.size, -1)
        if self._left_out is not None:
            current.add_(self._left_out)
            for number in unused:
                current[..., self._places[number]].zero_()
        sent = self._packed(rows)
        received = torch.empty_like(sent)
        yield _started(dist.all_to_all_single(received, sent, group=axis.group, async_op=True))
        left_out = rows - self._unpacked(sent, rows.dtype)
        mine = self._unpacked(received, rows.dtype).sum(0)
        if scatters:
            rows[axis.rank] = mine
        else:
            packed = self._packed(mine[None])
            left_out[axis.rank] += mine - self._unpacked(packed, rows.dtype)[0]
            gathered = torch.empty_like(sent)
            yield _started(
                _torch.all_gather_single(gathered, packed, group=axis.group, async_op=True)
            )
            rows.copy_(self._unpacked(gathered, rows.dtype))
        total = rows[axis.rank] if scatters else rows
        self._keep(left_out.view_as(current), total.isfinite().all(), unused)

    def _keep(self, left_out: torch.Tensor, finite: torch.Tensor, unused: Collection[int]) -> None:
        """Set what the step leaves out; an overflow, after which steps are skipped, changes nothing."""
        before = torch.zeros_like(left_out) if self._left_out is None else self._left_out
        for number in unused:
            left_out[..., self._places[number]] = before[..., self._places[number]]
        self._new = torch.where(finite & left_out.isfinite().all(), left_out, before)

    def commit(self) -> None:
        """Keep what the step left out, now that it is done."""
        if self._new is not None:
            self._left_out, self._new = self._new, None

    def drop(self) -> None:
        """Forget what a failed step left out."""
        self._new = None

    def _packed(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows as bytes: all elements, then the scales of all blocks."""
        blocks = rows.view(rows.shape[0], -1, BLOCK)
        scales = (blocks.abs().amax(-1, keepdim=True) / LARGEST[self._form]).float()
        scaled = blocks / scales.masked_fill(scales == 0, 1.0).to(blocks.dtype)
        if self._form == "int8":
            numbers = scaled.round_().clamp_(-127, 127).to(torch.int8)
        else:
            numbers = scaled.clamp_(-448, 448).to(torch.float8_e4m3fn)
        of = numbers.view(torch.uint8).flatten(1), scales.view(torch.uint8).flatten(1)
        return torch.cat(of, 1)

    def _unpacked(self, packed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the rows that the bytes stand for; an overflow is NaN in its whole block."""
        count = packed.shape[1] * BLOCK // (BLOCK + SCALE_NBYTES)
        numbers, scales = packed[:, :count], packed[:, count:].contiguous()
        kind = torch.int8 if self._form == "int8" else torch.float8_e4m3fn
        blocks = numbers.contiguous().view(kind).to(dtype).view(packed.shape[0], -1, BLOCK)
        return (blocks * scales.view(torch.float32).unsqueeze(-1).to(dtype)).flatten(1)


def _started(work: dist.Work | None) -> dist.Work:
    assert work is not None
    return work
