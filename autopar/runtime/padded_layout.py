"""Converts a parameter's part at rest to its part of the padded tensor in the step, and gradients back.

At rest a `DTensor` has the model's shape, split as `torch.chunk` does.  In the step all parts are equal.
If a rank's part in the step begins with its part at rest, zeros are appended.  If entries span several
rows (heads), ranks exchange rows first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from autopar.ir.mesh import Mesh
from autopar.ir.pads import Pad, cuts_evenly, cutting_axis, padded_shape
from autopar.ir.placement import Sharding
from autopar.runtime.axes import Axes


def flat(x: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Flatten dims `first` to `last`, with a static type."""
    made: torch.Tensor = x.flatten(first, last)
    return made


@dataclass(frozen=True)
class Zeros:
    """Padding of dim `dim`, viewed as [before, to, after]: only the first `real` of `to` entries are
    the model's."""

    dim: int
    before: int
    real: int
    to: int
    after: int

    def put(self, x: torch.Tensor) -> torch.Tensor:
        """Append zeros to the real entries."""
        apart = x.unflatten(self.dim, (self.before, self.real, self.after))
        made = apart.new_zeros(self._sizes(apart, self.to))
        made.narrow(self.dim + 1, 0, self.real).copy_(apart)
        return flat(made, self.dim, self.dim + 2)

    def cut(self, x: torch.Tensor) -> torch.Tensor:
        """Return the real entries only."""
        apart = x.unflatten(self.dim, (self.before, self.to, self.after))
        return flat(apart.narrow(self.dim + 1, 0, self.real), self.dim, self.dim + 2)

    def _sizes(self, apart: torch.Tensor, count: int) -> list[int]:
        sizes = list(apart.shape)
        sizes[self.dim + 1] = count
        return sizes


@dataclass(frozen=True)
class Exchange:
    """How a dim's rows, in each of `before` blocks of `rows`, are divided at rest and in the step.

    Rank r holds rows [r * held, (r + 1) * held) of each block at rest, and [r * used, (r + 1) * used)
    in the step, both limited to `rows`.
    """

    axis: str
    ranks: int
    dim: int
    before: int
    rows: int
    held: int
    used: int

    def common(self, holder: int, user: int) -> tuple[int, int]:
        """Return the range [first, last) of rows that `holder` has at rest and `user` in the step."""
        first = max(holder * self.held, user * self.used)
        last = min((holder + 1) * self.held, (user + 1) * self.used, self.rows)
        return first, max(first, last)


@dataclass(frozen=True)
class PaddedLayout:
    """One parameter on one rank: its shape in the step, its padding, and its exchange of rows."""

    shape: tuple[int, ...]
    zeros: tuple[Zeros, ...] = ()
    exchange: Exchange | None = None

    @classmethod
    def of(
        cls,
        true: tuple[int, ...],
        pads: tuple[Pad, ...],
        stored: Sharding,
        mesh: Mesh,
        coordinate: tuple[int, ...],
    ) -> PaddedLayout:
        """Return the layout of a parameter with shape `true` in the model and sharding `stored`."""
        exchange, zeros = None, []
        for pad in pads:
            axis = cutting_axis(pad, stored, mesh)
            ranks, rank = (1, 0) if axis is None else (mesh.sizes[axis], coordinate[axis])
            to = pad.to // ranks
            real = min(max(pad.size - rank * to, 0), to)
            zeros.append(Zeros(pad.dim, pad.before, real, to, pad.after))
            if axis is not None and not cuts_evenly(pad, ranks):
                rows = pad.size * pad.after
                exchange = Exchange(
                    mesh.names[axis],
                    ranks,
                    pad.dim,
                    pad.before,
                    rows,
                    rows // ranks,
                    to * pad.after,
                )
        return cls(stored.local_shape(padded_shape(true, pads), mesh), tuple(zeros), exchange)

    @property
    def is_plain(self) -> bool:
        """Whether the step uses the part at rest as it is."""
        return not self.zeros

    @property
    def numel(self) -> int:
        """Number of elements in the step, padding included."""
        return math.prod(self.shape)

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        """Insert zeros where the model has no entries."""
        for zeros in self.zeros:
            x = zeros.put(x)
        return x

    def cut(self, x: torch.Tensor) -> torch.Tensor:
        """Remove the padding; the result is contiguous."""
        for zeros in self.zeros:
            x = zeros.cut(x)
        return x.contiguous()


def enter(
    entries: Sequence[PaddedLayout], parts: Sequence[torch.Tensor], axes: Axes
) -> list[torch.Tensor]:
    """Convert parts at rest to parts in the step; exchanged ones share one axis and one collective."""
    if entries[0].exchange is not None:
        parts = _exchanged(entries, parts, axes, back=False)
    return [entry.padded(part) for entry, part in zip(entries, parts, strict=True)]


def leave(
    entries: Sequence[PaddedLayout], parts: Sequence[torch.Tensor], axes: Axes
) -> list[torch.Tensor]:
    """Convert parts in the step, such as gradients, to parts at rest."""
    cut = [entry.cut(part) for entry, part in zip(entries, parts, strict=True)]
    return _exchanged(entries, cut, axes, back=True) if entries[0].exchange is not None else cut


def kept_here(entry: PaddedLayout, part: torch.Tensor, axes: Axes) -> torch.Tensor:
    """Return the part at rest with the values that this rank has in the step, zeros elsewhere."""
    cut = entry.cut(part)
    exchange = entry.exchange
    if exchange is None:
        return cut
    rank = axes[exchange.axis].rank
    first, last = exchange.common(rank, rank)
    blocks = _blocks(cut, exchange)
    sizes = list(blocks.shape)
    sizes[exchange.dim + 1] = exchange.held
    made = blocks.new_zeros(sizes)
    mine = blocks.narrow(exchange.dim + 1, first - rank * exchange.used, last - first)
    made.narrow(exchange.dim + 1, first - rank * exchange.held, last - first).copy_(mine)
    return flat(made, exchange.dim, exchange.dim + 1)


def _blocks(x: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    rows = x.shape[exchange.dim] // exchange.before
    blocks: torch.Tensor = x.unflatten(exchange.dim, (exchange.before, rows))
    return blocks


def _exchanged(
    entries: Sequence[PaddedLayout], parts: Sequence[torch.Tensor], axes: Axes, *, back: bool
) -> list[torch.Tensor]:
    """Exchange rows of all parts in one all-to-all: to the layout of the step, or (`back`) at rest."""
    first = entries[0].exchange
    assert first is not None
    axis = axes[first.axis]
    sent: list[list[torch.Tensor]] = [[] for _ in range(axis.size)]
    shapes: list[list[list[int]]] = [[] for _ in range(axis.size)]
    for entry, part in zip(entries, parts, strict=True):
        exchange = entry.exchange
        assert exchange is not None and exchange.axis == first.axis
        blocks, place = _blocks(part, exchange), exchange.dim + 1
        start = axis.rank * (exchange.used if back else exchange.held)
        for other in range(axis.size):
            pair, reverse = (axis.rank, other), (other, axis.rank)
            low, high = exchange.common(*(reverse if back else pair))
            sent[other].append(blocks.narrow(place, low - start if high > low else 0, high - low))
            low, high = exchange.common(*(pair if back else reverse))
            shape = list(blocks.shape)
            shape[place] = high - low
            shapes[other].append(shape)
    leaving = torch.cat([piece.reshape(-1) for pieces in sent for piece in pieces])
    sizes_in = [sum(piece.numel() for piece in pieces) for pieces in sent]
    sizes_out = [sum(math.prod(shape) for shape in each) for each in shapes]
    got = leaving.new_empty(sum(sizes_out))
    dist.all_to_all_single(got, leaving, sizes_out, sizes_in, group=axis.group)
    return _put_together(entries, shapes, got)


def _put_together(
    entries: Sequence[PaddedLayout], shapes: list[list[list[int]]], got: torch.Tensor
) -> list[torch.Tensor]:
    """Concatenate the received rows of every part, in rank order."""
    pieces = iter(got.split([math.prod(shape) for each in shapes for shape in each]))
    by_rank = [[next(pieces).view(shape) for shape in each] for each in shapes]
    made = []
    for number, entry in enumerate(entries):
        assert entry.exchange is not None
        dim = entry.exchange.dim
        joined = torch.cat([each[number] for each in by_rank], dim + 1)
        made.append(flat(joined, dim, dim + 1))
    return made
