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
from autopar.runtime.one_of import one_of

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
        left_out = self._rest(rows, sent)
        mine = self._sum(received, rows.new_zeros((1, rows.shape[1])))
        finite = _is_finite(sent) & _is_finite(received)
        if scatters:
            rows[axis.rank] = mine[0]
        else:
            packed = self._packed(mine)
            left_out[axis.rank] += self._rest(mine, packed)[0]
            gathered = torch.empty_like(sent)
            yield _started(
                _torch.all_gather_single(gathered, packed, group=axis.group, async_op=True)
            )
            finite &= _is_finite(gathered)
            self._unpacked(gathered, rows)
        self._keep(left_out.view_as(current), finite, unused)

    def _keep(self, left_out: torch.Tensor, finite: torch.Tensor, unused: Collection[int]) -> None:
        """Set what the step leaves out; an overflow, after which steps are skipped, changes nothing."""
        before = torch.zeros_like(left_out) if self._left_out is None else self._left_out
        for number in unused:
            left_out[..., self._places[number]] = before[..., self._places[number]]
        self._new = one_of(finite, left_out, before)

    def commit(self) -> None:
        """Keep what the step left out, now that it is done."""
        if self._new is not None:
            self._left_out, self._new = self._new, None

    def drop(self) -> None:
        """Forget what a failed step left out."""
        self._new = None

    def _sum(self, received: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """Add up the rows that the bytes stand for, one after the other: that takes little memory."""
        room = torch.empty_like(total)
        for part in received.split(1):
            total.add_(self._unpacked(part, room))
        return total

    def _packed(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows as bytes: of each row all elements, then the scales of all blocks."""
        length = rows.shape[1] // BLOCK * (BLOCK + SCALE_NBYTES)
        message = rows.new_empty((len(rows), length), dtype=torch.uint8)
        for row, part in zip(rows.split(1), message.split(1), strict=True):
            self._pack(row, part)
        return message

    def _pack(self, row: torch.Tensor, message: torch.Tensor) -> None:
        """Write one row as bytes."""
        blocks = row.view(1, -1, BLOCK)
        largest = torch.maximum(blocks.amax(-1), -blocks.amin(-1))
        numbers, scales = self._parts(message)
        scales.copy_(largest / LARGEST[self._form])
        divisors = scales.to(row.dtype).masked_fill(scales == 0, 1.0)
        scaled = (blocks / divisors.unsqueeze(-1)).flatten(1)
        if self._form == "int8":
            scaled.round_()
        numbers.copy_(scaled.clamp_(-LARGEST[self._form], LARGEST[self._form]))

    def _unpacked(self, packed: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        """Write the rows that the bytes stand for into `made`; an overflow is NaN in its whole block."""
        numbers, scales = self._parts(packed)
        made.copy_(numbers)
        made.view(*scales.shape, BLOCK).mul_(scales.unsqueeze(-1))
        return made

    def _rest(self, rows: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
        """Return what rows have and their bytes lack."""
        made = self._unpacked(packed, torch.empty_like(rows))
        return torch.sub(rows, made, out=made)

    def _parts(self, message: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the elements and the scales of a message, as views."""
        count = message.shape[1] * BLOCK // (BLOCK + SCALE_NBYTES)
        kind = torch.int8 if self._form == "int8" else torch.float8_e4m3fn
        return message[:, :count].view(kind), message[:, count:].view(torch.float32)


def _is_finite(message: torch.Tensor) -> torch.Tensor:
    """Return whether all scales of a message are finite: those of an overflow are not."""
    count = message.shape[1] * BLOCK // (BLOCK + SCALE_NBYTES)
    return message[:, count:].view(torch.float32).isfinite().all()


def _started(work: dist.Work | None) -> dist.Work:
    assert work is not None
    return work
