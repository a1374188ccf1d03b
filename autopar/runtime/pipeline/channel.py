"""Transfers one tensor between two workers with non-blocking point-to-point messages.

Both ends compute the same list of messages, and issue those of a pair of ranks in the same order, so
receives may be posted before anything is sent.  Tags are for backends that have them: they turn another
order into an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from autopar.runtime.pipeline.directions import Directions, Pair
from autopar.runtime.pipeline.tiles import Layout, Message, cut, messages, paste

Work = tuple[dist.Work, torch.Tensor]
"""A send or receive in progress, and the buffer that must be kept until it is complete."""


@dataclass(eq=False)
class Arriving:
    """A tensor of which some tiles are still being received."""

    tensor: torch.Tensor
    under_way: list[tuple[Message, dist.Work, torch.Tensor]]

    def wait(self) -> torch.Tensor:
        """Wait for all tiles and return the local tensor."""
        for message, work, buffer in self.under_way:
            work.wait()
            if buffer is not self.tensor:
                paste(self.tensor, message.placed, buffer)
        self.under_way = []
        return self.tensor


class Channel:
    """Transfers one tensor of global `shape` from layout `source` to `target`; used on ranks of both."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        source: Layout,
        target: Layout,
        directions: Directions,
    ) -> None:
        rank = dist.get_rank()
        every = [
            m.on(directions.device) for m in messages(shape, source, target) if rank in m.ranks
        ]
        self._sends = [m for m in every if m.source == rank]
        self._receives = [m for m in every if m.target == rank]
        self._dtype, self._directions = dtype, directions
        self._local: tuple[int, ...] = ()
        if rank in target.ranks:
            self._local = target.form.local_shape(shape, target.mesh)
        self._rank = rank

    @property
    def pairs(self) -> Iterator[Pair]:
        """The pairs of this rank and another that have a message."""
        every = (*self._sends, *self._receives)
        return ((m.source, m.target) for m in every if m.source != m.target)

    @property
    def sends(self) -> bool:
        """Whether this rank sends anything to another."""
        return any(message.target != self._rank for message in self._sends)

    def send(self, tensor: torch.Tensor, tag: int) -> Iterable[Work]:
        """Start sending this rank's tiles to other ranks."""
        for message in self._sends:
            if message.target != self._rank:
                box = cut(tensor.detach(), message.taken)
                group = self._directions.between(message.source, message.target)
                yield _started(dist.isend(box, message.target, group=group, tag=tag)), box

    def post(self, tag: int) -> Arriving:
        """Start receiving from other ranks.  `keep` copies the tiles that this rank has itself."""
        whole = torch.empty(self._local, dtype=self._dtype, device=self._directions.device)
        under_way = []
        for message in self._receives:
            if message.source != self._rank:
                is_all = message.shape == tuple(whole.shape)
                box = whole if is_all else whole.new_empty(message.shape)
                group = self._directions.between(message.source, message.target)
                work = _started(dist.irecv(box, message.source, group=group, tag=tag))
                under_way.append((message, work, box))
        return Arriving(whole, under_way)

    def keep(self, tensor: torch.Tensor, arriving: Arriving) -> None:
        """Copy the tiles that stay on this rank."""
        for message in self._receives:
            if message.source == self._rank:
                paste(arriving.tensor, message.placed, cut(tensor.detach(), message.taken))


def _started(work: dist.Work | None) -> dist.Work:
    assert work is not None
    return work
