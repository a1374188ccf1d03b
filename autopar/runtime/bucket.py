"""A bucket: parameters with the same hops share collectives, in forward and backward.

Gradients are laid out ``[n_k, ..., n_1, m]``, so that undoing a gathering hop is one reduce-scatter
of the leading dim.  A hop that only sums is an all-reduce in place.  Both leave their result in the
bucket's buffer.  A result that is the whole buffer stays there: sums of later backwards are added
without extra memory.  One that is a part of it is copied out, and the buffer is freed (ZeRO-2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from autopar.plans.compressed_messages import padded_numel, ranks_of
from autopar.plans.hops import Hop
from autopar.request.compression import Compression
from autopar.runtime import _torch
from autopar.runtime.axes import Axes
from autopar.runtime.compressed_sum import compressed_sums
from autopar.runtime.gathers import all_gather_many
from autopar.runtime.named import label, named
from autopar.runtime.padded_layout import enter, leave
from autopar.runtime.sharded_parameter import ShardedParameter


@dataclass(eq=False)
class Bucket:
    """Slots with equal hops and dtypes; `dtype` is that of the reduction, which may be lower than that
    of gradients at rest.

    `waiting` and `unused` are slot numbers: gradients that have not arrived, and parameters that the
    backward did not use.
    """

    slots: Sequence[ShardedParameter]
    axes: Axes
    dtype: torch.dtype
    compression: Compression | None = None
    """How these gradients travel compressed; None: they do not."""
    waiting: set[int] = field(default_factory=set)
    unused: set[int] = field(default_factory=set)
    _buffer: torch.Tensor | None = None
    _places: Sequence[torch.Tensor] = ()
    _results: Sequence[torch.Tensor | None] = ()
    """This rank's parts of the sums, by slot number, from `drain` to `finish`; None of unused ones."""

    def __post_init__(self) -> None:
        self.hops: tuple[Hop, ...] = self.slots[0].hops
        self._entries = [slot.entry for slot in self.slots]
        self._sizes = [
            padded_numel(entry.numel, ranks_of(self.hops), self.compression)
            for entry in self._entries
        ]
        shapes = [entry.shape for entry in self._entries]
        self._compressed = compressed_sums(self.hops, shapes, self.compression)
        self._done = 0
        """Number of steps that this bucket has finished."""
        self._leading = self.slots[0].pieces.leading
        self._own = tuple(self.axes[hop.axis].rank for hop in reversed(self.hops) if hop.gathers)
        self._adds = all(hop.gathers or self.axes[hop.axis].rank == 0 for hop in self.hops)
        self.scatters = any(hop.gathers for hop in self.hops)
        """Whether this rank keeps a part of what the bucket reduces."""
        self._widens = self.dtype != self.slots[0].local.dtype
        self.reset()

    def reset(self) -> None:
        """Mark all gradients as not arrived."""
        self.waiting = set(range(len(self.slots)))
        self.unused = set()
        self._results = ()

    def put(self, number: int) -> None:
        """Copy a leaf's gradient into the buffer; write zeros if the parameter was not used.

        This runs between a backward's operators, once per parameter, so every call of torch costs.
        All ranks run the same program, so a parameter is unused on all of them or on none.
        """
        if self._is_empty():
            self._renew()
        slot, place = self.slots[number], self._places[number]
        gradient = slot.leaf.grad
        slot.touch(keeps=not self._rests(slot) and not slot.pending)
        before = slot.synchronised() if self._rests(slot) else None
        if gradient is None and before is not None:
            gradient = torch.zeros_like(slot.leaf, dtype=self.dtype)
        if gradient is None:
            place.zero_()
            self.unused.add(number)
        else:
            if before is not None and self._adds:
                self._add(before, slot, gradient)
            place.copy_(gradient.reshape(place.shape) if self._leading else gradient)
            slot.leaf.grad = None
        self.waiting.discard(number)

    def _add(self, before: torch.Tensor, slot: ShardedParameter, gradient: torch.Tensor) -> None:
        """Add the sum of earlier backwards, counted once over all ranks; it may lie in the buffer."""
        mine = slot.pieces.view(gradient)[self._own]
        mine.add_(slot.entry.padded(before).reshape(mine.shape))

    def _rests(self, slot: ShardedParameter) -> bool:
        """Whether a gradient stays in the buffer, and sums of later backwards are added there.

        Others are added after they have travelled: compressed ones, and those in a lower dtype than at
        rest.
        """
        return slot.rests_in_step and not self._compressed and not self._widens

    def launch(self) -> None:
        """Start the first collective, after hops that only slice; `finish` runs the others."""
        assert self._buffer is not None and not self.waiting
        for padding in self._paddings:
            padding.zero_()
        self._current = self._buffer
        self._works: Iterator[dist.Work] = self._started()
        self._work = next(self._works, None)

    def abandon(self, is_launched: bool) -> None:
        """Discard the gradients of a failed backward; first wait for the collective it started."""
        if is_launched and self._work is not None:
            self._work.wait()
        self._works = iter(())  # what it has begun holds the buffer
        for each in self._compressed.values():
            each.drop()
        self._free()
        self.reset()

    def drain(self) -> None:
        """Wait, and undo the remaining hops.  If the results are parts of the buffer, free the rest."""
        if self._results:
            return
        while self._work is not None:
            self._work.wait()
            self._work = next(self._works, None)
        total = self._current.reshape(-1)
        parts = [
            part[: entry.numel].view(entry.shape)
            for entry, part in zip(self._entries, total.split(self._sizes), strict=True)
        ]
        found = leave(self._entries, parts, self.axes)
        self._results = [
            None if number in self.unused else self._kept(slot, part)
            for number, (slot, part) in enumerate(zip(self.slots, found, strict=True))
        ]
        del self._current
        if self.scatters:
            self._free()

    def finish(self) -> None:
        """Set every slot's gradient to its result."""
        self.drain()
        for slot, mine in zip(self.slots, self._results, strict=True):
            if mine is None:
                continue
            if self._widens:
                slot.accumulate(mine)
            elif self._rests(slot):
                slot.replace(mine)
            else:
                slot.settle(mine)
        if self._widens:
            self._free()
        for each in self._compressed.values():
            each.commit()
        self._done += 1
        self.reset()

    def _kept(self, slot: ShardedParameter, part: torch.Tensor) -> torch.Tensor:
        """Return a result outside a buffer that will be freed.

        It takes the place of the sum of earlier backwards, which it includes, so that steps which keep
        their gradients allocate nothing.
        """
        assert self._buffer is not None
        if not self.scatters or _torch.storage_of(part) != _torch.storage_of(self._buffer):
            return part
        before = slot.included() if self._rests(slot) else None
        if before is None or before.dtype != part.dtype or not before.is_contiguous():
            return part.clone()
        return before.data.copy_(part)  # `.data` has its own version counter

    def _free(self) -> None:
        self._buffer, self._places = None, ()

    def _started(self) -> Iterator[dist.Work]:
        """Undo all hops; yield each collective when it has started, to go on when it is done."""
        for hop in reversed(self.hops):
            works = self._undone(hop)
            while True:
                with named(label("gradients", "", "reduce", hop.axis)):
                    work = next(works, None)
                if work is None:
                    break
                yield work

    def _undone(self, hop: Hop) -> Iterator[dist.Work]:
        axis, current = self.axes[hop.axis], self._current
        if hop.gathers:
            self._current = current[axis.rank]
        if not hop.reduces:
            return
        compression = self.compression
        if compression and hop.axis in self._compressed and self._done >= compression.after:
            yield from self._compressed[hop.axis].run(current, axis, hop.gathers, self.unused)
            return
        if hop.gathers:
            work = _torch.reduce_scatter_single(
                self._current.view(-1), current.view(-1), group=axis.group, async_op=True
            )
        else:
            work = dist.all_reduce(current, group=axis.group, async_op=True)
        if work is not None:
            yield work

    def _is_empty(self) -> bool:
        return len(self.waiting) == len(self.slots)

    def _renew(self) -> None:
        """Allocate the buffer; the last one is used again unless something else refers to it."""
        if self._buffer is None or self._is_held(self._buffer):
            shape = (*self._leading, sum(self._sizes))
            self._buffer = torch.empty(shape, dtype=self.dtype, device=self.slots[0].local.device)
            self._places = [
                slot.pieces.back(place)
                for slot, place in zip(self.slots, self._laid_out(self._buffer), strict=True)
            ]

    def _is_held(self, buffer: torch.Tensor) -> bool:
        """Whether anything but our parameters' gradients refers to the buffer's storage."""
        storage = _torch.storage_of(buffer)
        before = (slot.synchronised() if self._rests(slot) else None for slot in self.slots)
        ours = sum(each is not None and _torch.storage_of(each) == storage for each in before)
        return _torch.users(buffer) > 1 + len(self._places) + ours

    @property
    def _paddings(self) -> Iterator[torch.Tensor]:
        """The parts of the buffer behind gradients whose length is padded."""
        assert self._buffer is not None
        parts = self._buffer.split(self._sizes, -1)
        for entry, part in zip(self._entries, parts, strict=True):
            if entry.numel < part.shape[-1]:
                yield part[..., entry.numel :]

    def _laid_out(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Return every slot's part of the buffer, in the shape of its pieces."""
        return [
            part[..., : slot.entry.numel].view(
                (*self._leading, *slot.pieces.shape[len(self._leading) :])
            )
            for slot, part in zip(self.slots, buffer.split(self._sizes, -1), strict=True)
        ]

    @torch.no_grad()
    def gather(self) -> None:
        """Fill the leaves from the shards at rest."""
        if not self.scatters and all(entry.is_plain for entry in self._entries):
            for slot in self.slots:  # only the dtype differs: no copies of all of them at once
                slot.fill(slot.local)
            return
        stored = [slot.local.to(slot.leaf_dtype) for slot in self.slots]
        parts = enter(self._entries, stored, self.axes)
        hops = [hop for hop in self.hops if hop.gathers]
        for hop in hops:
            rooms = [
                slot.room(hop.ranks, part, is_last=hop is hops[-1])
                for slot, part in zip(self.slots, parts, strict=True)
            ]
            with named(label("parameters", "", "all_gather", hop.axis)):
                all_gather_many(rooms, parts, self.axes[hop.axis].group)
            parts = rooms
        for slot, part in zip(self.slots, parts, strict=True):
            slot.fill(part)
