"""A tensor to be filled on this rank: a parameter's shard, or a full buffer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from autopar.runtime import _torch

Box = tuple[slice, ...]
"""One slice per dim."""


@dataclass(frozen=True, eq=False)
class Target:
    """A tensor to be filled; `runs` are this rank's indices of the full tensor, in order, by dim."""

    name: str
    tensor: torch.Tensor
    runs: tuple[tuple[slice, ...], ...]

    @property
    def local(self) -> torch.Tensor:
        """This rank's part, outside autograd."""
        tensor = self.tensor
        return (_torch.local_of(tensor) if isinstance(tensor, DTensor) else tensor).detach()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the full tensor."""
        return tuple(self.tensor.shape)

    @torch.no_grad()
    def fill(self, read: Callable[[Box], torch.Tensor]) -> None:
        """Set this rank's part; `read` returns boxes of the full tensor."""
        local = self.local
        for here, there in self._boxes():
            local[here].copy_(read(there))

    def put(self, whole: torch.Tensor) -> None:
        """Set this rank's part from the full tensor."""
        self.fill(lambda box: whole[box])

    @torch.no_grad()
    def whole(self) -> torch.Tensor:
        """Return the full tensor on the CPU.  Collective."""
        tensor = self.tensor.detach()
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return whole.to("cpu", copy=True)

    def _boxes(self) -> Iterator[tuple[Box, Box]]:
        """Yield (box in the local tensor, box in the full tensor)."""
        return zip(
            itertools.product(*(_packed(runs) for runs in self.runs)),
            itertools.product(*self.runs),
            strict=True,
        )


def _packed(runs: Sequence[slice]) -> list[slice]:
    """Return the runs' positions in the local tensor, where they follow each other."""
    ends = [0, *itertools.accumulate(run.stop - run.start for run in runs)]
    return [slice(start, end) for start, end in itertools.pairwise(ends)]
