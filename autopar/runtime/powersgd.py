"""PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019): matrices are summed as two thin factors.

For matrices M_i on ranks i, ``P = sum M_i Q`` is made orthogonal, ``Q = sum M_i^T P``, and ``P Q^T``
approximates the sum; it is exact if the sum's rank is at most that of the factors.  Q begins the next
step (one power iteration per step).  A rank leaves out ``M_i - P (M_i^T P)^T``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from autopar.runtime.axes import Axis
from autopar.runtime.one_of import one_of


@dataclass(eq=False)
class _Matrix:
    """One gradient in the bucket: its place in the last dim, and the state between steps.

    `right` is Q, equal on all ranks; `left_out` is this rank's.  `new` holds both of the running step.
    """

    number: int
    start: int
    numel: int
    columns: int
    right: torch.Tensor | None = None
    left_out: torch.Tensor | None = None
    new: tuple[torch.Tensor, torch.Tensor] | None = None

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the gradient as a matrix; its rows are those of all parts."""
        return flat[:, self.start : self.start + self.numel].reshape(-1, self.columns)

    def put(self, flat: torch.Tensor, matrix: torch.Tensor) -> None:
        """Write a matrix over the gradient."""
        place = flat[:, self.start : self.start + self.numel]
        place.copy_(matrix.reshape(place.shape))

    def beginning(self, like: torch.Tensor, rank: int) -> torch.Tensor:
        """Return orthonormal columns to begin with: last step's, or random ones equal on all ranks.

        Columns that vanished with the gradient are replaced by others.
        """
        if self.right is None:
            generator = torch.Generator().manual_seed(self.number)
            drawn = torch.randn(self.columns, rank, generator=generator, dtype=torch.float64)
            self.right = drawn.to(like)
        return orthonormal(self.right)


def orthonormal(matrix: torch.Tensor) -> torch.Tensor:
    """Return an orthonormal basis of the columns, with signs that rounding does not flip."""
    wide = matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.float()
    basis, triangle = torch.linalg.qr(wide)
    signs = torch.where(triangle.diagonal() < 0, -1.0, 1.0).to(wide.dtype)
    found: torch.Tensor = (basis * signs).to(matrix.dtype)
    return found


class LowRankSum:
    """Sums the gradients of a bucket over one axis by PowerSGD."""

    def __init__(self, parts: Sequence[tuple[int, ...]], rank: int) -> None:
        sizes = [math.prod(part) for part in parts]
        starts = itertools.accumulate(sizes, initial=0)
        self._rank = rank
        self._matrices = [
            _Matrix(number, start, size, math.prod(part[1:]))
            for number, (start, size, part) in enumerate(zip(starts, sizes, parts, strict=False))
        ]

    def run(
        self, current: torch.Tensor, axis: Axis, scatters: bool, unused: Collection[int]
    ) -> Iterator[dist.Work]:
        """Add `current` up over the axis, as `CompressedSum` says."""
        flat = current.view(-1, current.shape[-1])
        every = self._matrices
        gradients = [self._with_left_out(each, flat, unused) for each in every]
        rows = [gradient.shape[0] for gradient in gradients]
        lefts = _Together(flat, rows, self._rank)
        for each, gradient, left in zip(every, gradients, lefts.parts, strict=True):
            torch.mm(gradient, each.beginning(gradient, self._rank), out=left)
        yield lefts.sum(axis)
        bases = [orthonormal(left) for left in lefts.parts]
        rights = _Together(flat, [each.columns for each in every], self._rank)
        left_out = []
        for gradient, basis, right in zip(gradients, bases, rights.parts, strict=True):
            torch.mm(gradient.T, basis, out=right)
            left_out.append(torch.addmm(gradient, basis, right.T, alpha=-1))
        yield rights.sum(axis)
        finite = lefts.is_finite() & rights.is_finite()
        for each, basis, right, rest in zip(every, bases, rights.parts, left_out, strict=True):
            each.put(flat, basis @ right.T)
            if each.number not in unused:
                each.new = _kept(right.clone(), rest, each, finite)

    @staticmethod
    def _with_left_out(each: _Matrix, flat: torch.Tensor, unused: Collection[int]) -> torch.Tensor:
        gradient = each.of(flat)
        if each.left_out is None or each.number in unused:
            return gradient
        return gradient.add_(each.left_out)

    def commit(self) -> None:
        """Keep what the step left out, now that it is done."""
        for each in self._matrices:
            if each.new is not None:
                (each.right, each.left_out), each.new = each.new, None

    def drop(self) -> None:
        """Forget what a failed step left out."""
        for each in self._matrices:
            each.new = None


class _Together:
    """The factors of all matrices, one after the other in one tensor."""

    def __init__(self, like: torch.Tensor, sides: Sequence[int], rank: int) -> None:
        self._whole = like.new_empty(sum(sides) * rank)
        each = self._whole.split([side * rank for side in sides])
        self.parts = [part.view(-1, rank) for part in each]

    def sum(self, axis: Axis) -> dist.Work:
        """Start their sum over an axis."""
        work: dist.Work | None = dist.all_reduce(self._whole, group=axis.group, async_op=True)
        assert work is not None
        return work

    def is_finite(self) -> torch.Tensor:
        """Return whether all are finite, which is equal on all ranks after the sum."""
        return self._whole.isfinite().all()


def _kept(
    right: torch.Tensor, left_out: torch.Tensor, before: _Matrix, finite: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the new state; an overflow, after which steps are skipped, leaves it as it was."""
    old = torch.zeros_like(left_out) if before.left_out is None else before.left_out
    assert before.right is not None
    return one_of(finite, right, before.right), one_of(finite, left_out, old)
