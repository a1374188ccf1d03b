"""Sums gradients of parameters that several workers hold: tied weights, replicated stages.

Each worker computes its own gradient, and every worker needs the sum of all.  All add in the order of
the workers, so that the copies stay bitwise equal.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from autopar.runtime import _torch
from autopar.runtime.pipeline.channel import Channel
from autopar.runtime.pipeline.directions import Directions, Pair
from autopar.runtime.pipeline.tiles import Layout
from autopar.runtime.sharded_parameter import ShardedParameter


@dataclass(eq=False)
class Copies:
    """One parameter with the layout in which each of `workers` holds it; `slot` is this rank's part."""

    number: int
    slot: ShardedParameter
    workers: tuple[int, ...]
    layouts: tuple[Layout, ...]
    mine: int
    directions: Directions

    def __post_init__(self) -> None:
        here = self.workers.index(self.mine)
        own, others = self.layouts[here], enumerate(self.layouts)
        pairs = [None if place == here else (layout, own) for place, layout in others]
        self._out = [self._channel(own, pair[0]) for pair in pairs if pair is not None]
        self._in = [None if pair is None else self._channel(*pair) for pair in pairs]

        self._before: torch.Tensor | None = None

    def _channel(self, source: Layout, target: Layout) -> Channel:
        local = self.slot.local
        shape = tuple(self.slot.parameter.shape)
        return Channel(shape, local.dtype, source, target, self.directions)

    @property
    def pairs(self) -> Iterator[Pair]:
        """The pairs of this rank and another that exchange parts of the gradient."""
        channels = (*self._out, *filter(None, self._in))
        return (pair for channel in channels for pair in channel.pairs)

    def begin(self) -> None:
        """At the start of a step, set aside the accumulated gradient, which is equal on all workers."""
        self._before = self._gradient()
        self.slot.parameter.grad = None

    @torch.no_grad()
    def add_up(self, trained: Container[str]) -> None:
        """Replace the gradient by the sum over workers; without one if it is not in `trained`.

        The gradient set aside by `begin` is added.
        """
        if self.slot.name not in trained:
            before = self._before
            self.slot.parameter.grad = None if before is None else self.slot.as_gradient(before)
            return
        found = self._gradient()
        own = torch.zeros_like(self.slot.local) if found is None else found
        work = [send for channel in self._out for send in channel.send(own, self.number)]
        arriving = [None if channel is None else channel.post(self.number) for channel in self._in]
        parts = [own if part is None else part.wait() for part in arriving]
        for sending, _ in work:
            sending.wait()
        total = parts[0].clone() if self._before is None else self._before + parts[0]
        for part in parts[1:]:
            total += part
        self.slot.parameter.grad = self.slot.as_gradient(total)

    def _gradient(self) -> torch.Tensor | None:
        gradient = self.slot.parameter.grad
        assert gradient is None or isinstance(gradient, DTensor)
        return None if gradient is None else _torch.local_of(gradient)


def copies(
    slots: Sequence[ShardedParameter],
    holders: Mapping[str, tuple[tuple[int, Layout], ...]],
    mine: int,
    directions: Directions,
) -> list[Copies]:
    """Return this rank's parameters that other workers hold too, in the same order on all ranks.

    Connects the ranks that exchange gradients; all ranks call it.
    """
    by_name = {slot.name: slot for slot in slots}
    made = [
        Copies(number, by_name[name], *_split(found), mine, directions)
        for number, (name, found) in enumerate(sorted(holders.items()))
        if len(found) > 1 and name in by_name and by_name[name].parameter.requires_grad
    ]
    directions.connect(pair for each in made for pair in each.pairs)
    return made


def _split(
    found: tuple[tuple[int, Layout], ...],
) -> tuple[tuple[int, ...], tuple[Layout, ...]]:
    workers, layouts = zip(*found, strict=True)
    return workers, layouts
