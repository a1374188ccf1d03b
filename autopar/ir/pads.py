"""Padding: dims that are longer in the step than in the model, so that a mesh axis divides them.

A `Pad` treats a dim of a tensor as ``[before, size, after]`` and makes it ``[before, to, after]``: 25
heads of 64 entries in a fused q|k|v dim are ``before=3, size=25, after=64``.  The graphs that are priced
and emitted have padded shapes, which divide evenly.  Parameters at rest have no padding; `cuts_evenly`
and `shifts` relate a rank's shard at rest to its shard of the padded tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from autopar.errors import PaddingError
from autopar.ir.mesh import Mesh
from autopar.ir.placement import Sharding


@dataclass(frozen=True, slots=True)
class Pad:
    """`size` entries of dim `dim` become `to`, in each of `before` blocks, each entry `after` long."""

    dim: int
    size: int
    to: int
    before: int = 1
    after: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.size < self.to and self.before > 0 and self.after > 0 <= self.dim):
            raise PaddingError(f"{self} pads nothing: sizes are positive, and grow.")

    @property
    def whole(self) -> int:
        """The length of the dim in the model."""
        return self.before * self.size * self.after

    @property
    def padded(self) -> int:
        """The length of the dim in the step."""
        return self.before * self.to * self.after

    @property
    def is_plain(self) -> bool:
        """Whether the padding is only at the end of the dim."""
        return self.before == self.after == 1

    def at(self, dim: int) -> Pad:
        """Return the same padding of another dim."""
        return replace(self, dim=dim)

    def __str__(self) -> str:
        of = [f"of {self.before} blocks"] * (self.before > 1)
        each = [f"entries of {self.after}"] * (self.after > 1)
        where = f" ({', '.join((*of, *each))})" if of or each else ""
        return f"dim {self.dim}{where}: {self.size} -> {self.to}"


def padded_shape(shape: tuple[int, ...], pads: Iterable[Pad]) -> tuple[int, ...]:
    """Return the shape in the step of a tensor that has this shape in the model."""
    sizes = list(shape)
    for pad in pads:
        sizes[pad.dim] = pad.padded
    return tuple(sizes)


def true_shape(shape: tuple[int, ...], pads: Iterable[Pad]) -> tuple[int, ...]:
    """Return the shape in the model of a tensor that has this shape in the step."""
    sizes = list(shape)
    for pad in pads:
        sizes[pad.dim] = pad.whole
    return tuple(sizes)


def cutting_axis(pad: Pad, form: Sharding, mesh: Mesh) -> int | None:
    """Return the mesh axis (at most one) that splits the padded dim, or None if none does."""
    axes = [axis for _, axis in form.cuts(pad.dim) if mesh.sizes[axis] > 1]
    return axes[0] if axes else None


def cuts_evenly(pad: Pad, ranks: int) -> bool:
    """Return whether a rank's shard of the padded dim begins with its `DTensor` shard of the true dim.

    `DTensor` splits as `torch.chunk` does: equal parts, rounded up; the last ranks get the remainder.
    """
    return pad.is_plain and pad.to // ranks == math.ceil(pad.size / ranks)


def shifts(pad: Pad, ranks: int) -> bool:
    """Return whether ranks must exchange elements between rest and step, and the dim permits it.

    The true dim is then divided equally over the ranks at rest, which may split entries.
    """
    return not cuts_evenly(pad, ranks) and (pad.size * pad.after) % ranks == 0


def rests(form: Sharding, pads: tuple[Pad, ...], mesh: Mesh) -> bool:
    """Return whether a parameter at rest with these pads may have this sharding; see `Sharding.rests`.

    At most one axis splits a padded dim, at the position of its entries.  At most one dim is exchanged.
    """
    exchanged = 0
    for pad in pads:
        cuts = [(of, axis) for of, axis in form.cuts(pad.dim) if mesh.sizes[axis] > 1]
        if not cuts:
            continue
        of, axis = cuts[0]
        ranks = mesh.sizes[axis]
        if len(cuts) > 1 or of != pad.before or pad.to % ranks:
            return False
        if not cuts_evenly(pad, ranks):
            exchanged += 1
            if not shifts(pad, ranks):
                return False
    return exchanged <= 1 and form.rests(mesh)


def exchanging_axis(form: Sharding, pads: tuple[Pad, ...], mesh: Mesh) -> int | None:
    """Return the axis over which ranks exchange elements between rest and step, or None."""
    for pad in pads:
        axis = cutting_axis(pad, form, mesh)
        if axis is not None and not cuts_evenly(pad, mesh.sizes[axis]):
            return axis
    return None
