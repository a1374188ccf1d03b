"""A bucket: parameters that take the same hops travel together, forward and backward.

Gradients are laid out ``[n_k, ..., n_1, m]``, so that undoing a gathering hop is one reduce-scatter
of the leading dim; a hop that only sums is an all-reduce in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from autopar.runtime import _torch
from autopar.runtime.context import Axes
from autopar.runtime.entry import enter, leave
from autopar.runtime.named import label, named
from autopar.runtime.pieces import Hop
from autopar.runtime.slots import Slot


@dataclass(eq=False)
class Bucket:
    """Slots with equal hops and dtypes; `dtype` is that of the reduction.

    `waiting` and `unused` are numbers of slots: gradients that have not arrived, and that never will.
    """

    slots: Sequence[Slot]
    axes: Axes
    dtype: torch.dtype
    waiting: set[int] = field(default_factory=set)
    unused: set[int] = field(default_factory=set)
    _buffer: torch.Tensor | None = None
    _places: Sequence[torch.Tensor] = ()

    def __post_init__(self) -> None:
        self.hops: tuple[Hop, ...] = self.slots[0].hops
        self._entries = [slot.entry for slot in self.slots]
        self._sizes = [entry.numel for entry in self._entries]
        self._leading = self.slots[0].pieces.leading
        self.reset()

    def reset(self) -> None:
        """No gradient has arrived yet."""
        self.waiting = set(range(len(self.slots)))
        self.unused = set()

    def put(self, number: int) -> None:
        """Copy a leaf's gradient to its place; zeros where the parameter was not used.

        This runs between a backward's operators, once per parameter: every call of torch counts.
        All ranks run the same program, so a parameter is unused on all of them or on none.
        """
        if self._is_empty():
            self._renew()
        slot, place = self.slots[number], self._places[number]
        gradient = slot.leaf.grad
        if gradient is None:
            place.zero_()
            self.unused.add(number)
        else:
            place.copy_(gradient.reshape(place.shape) if self._leading else gradient)
            slot.leaf.grad = None
        self.waiting.discard(number)

    def launch(self) -> None:
        """Start the first collective, past hops that only slice; the others follow in `finish`."""
        assert self._buffer is not None and not self.waiting
        self._current = self._buffer
        self._left = list(reversed(self.hops))
        self._work: dist.Work | None = None
        while self._left and self._work is None:
            self._advance()

    def finish(self) -> None:
        """Wait, do the hops that are left, and give every slot its gradient."""
        while True:
            if self._work is not None:
                self._work.wait()
                self._work = None
            if not self._left:
                break
            self._advance()
        total = self._current.reshape(-1)
        parts = [
            part.view(entry.shape)
            for entry, part in zip(self._entries, total.split(self._sizes), strict=True)
        ]
        for number, mine in enumerate(leave(self._entries, parts, self.axes)):
            if number not in self.unused:
                self.slots[number].settle(mine)
        self.reset()
        del self._current

    def _advance(self) -> None:
        hop = self._left.pop(0)
        with named(label("gradients", "", "reduce", hop.axis)):
            self._undo(hop)

    def _undo(self, hop: Hop) -> None:
        axis = self.axes[hop.axis]
        current = self._current
        if hop.gathers and hop.reduces:
            self._current = torch.empty_like(current[0])
            self._work = _torch.reduce_scatter_single(
                self._current.view(-1), current.view(-1), group=axis.group, async_op=True
            )
        elif hop.gathers:
            self._current = current[axis.rank]
        else:
            self._work = dist.all_reduce(current, group=axis.group, async_op=True)

    def _is_empty(self) -> bool:
        return len(self.waiting) == len(self.slots)

    def _renew(self) -> None:
        """The buffer that gradients are laid out in; a new one where somebody holds the last."""
        if self._buffer is None or _torch.users(self._buffer) > 1 + len(self._places):
            shape = (*self._leading, sum(self._sizes))
            self._buffer = torch.empty(shape, dtype=self.dtype, device=self.slots[0].local.device)
            self._places = [
                slot.pieces.back(place)
                for slot, place in zip(self.slots, self._laid_out(self._buffer), strict=True)
            ]

    def _laid_out(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Every slot's part, in the shape of its pieces."""
        return [
            part.view((*self._leading, *slot.pieces.shape[len(self._leading) :]))
            for slot, part in zip(self.slots, buffer.split(self._sizes, -1), strict=True)
        ]

    @torch.no_grad()
    def gather(self) -> None:
        """Fill the leaves from the stored shards."""
        first = self.slots[0]
        stored = [slot.local.to(first.leaf_dtype) for slot in self.slots]
        entering = enter(self._entries, stored, self.axes)
        whole = torch.cat([part.reshape(-1) for part in entering])
        for hop in self.hops:
            if hop.gathers:
                made = whole.new_empty((hop.ranks, *whole.shape))
                group = self.axes[hop.axis].group
                with named(label("parameters", "", "all_gather", hop.axis)):
                    _torch.all_gather_single(made.view(-1), whole.view(-1), group=group)
                whole = made
        for slot, part in zip(self.slots, self._laid_out(whole), strict=True):
            slot.pieces.view(slot.leaf.detach()).copy_(part)
            slot.gathered_version = slot.local._version
