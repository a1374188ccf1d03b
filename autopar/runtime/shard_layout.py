"""The layout of each rank's elements of a parameter in its leaf."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from autopar.ir.mesh import Mesh
from autopar.ir.placement import S
from autopar.plans.decisions import ParameterPlan


@dataclass(frozen=True)
class ShardLayout:
    """A leaf viewed as ``[n_k, ..., n_1, *stored]``: one leading dim per gathering hop, the last first.

    Every dim is unflattened at the positions of all its hops at once, so this is a view.  `segments` is
    the unflattened shape; the permutation `order` brings the rank dims to the front.
    """

    segments: tuple[int, ...]
    order: tuple[int, ...]
    leading: tuple[int, ...]

    @classmethod
    def of(cls, plan: ParameterPlan, shape: tuple[int, ...], mesh: Mesh) -> ShardLayout:
        """Return the layout for a parameter of this global shape."""
        steps = plan.steps
        axes = [s.axis for s in steps if isinstance(s.source[s.axis], S) and mesh.sizes[s.axis] > 1]
        segments: list[int] = []
        place_of: dict[int, int] = {}
        for dim, size in enumerate(plan.leaf.local_shape(shape, mesh)):
            done = 1
            for of, axis in plan.stored.cuts(dim):
                if axis not in axes:
                    continue
                outer = (a for o, a in plan.leaf.cuts(dim) if o < of)
                position = of // math.prod(mesh.sizes[a] for a in outer)
                segments += [position // done, mesh.sizes[axis]]
                place_of[axis] = len(segments) - 1
                done = position * mesh.sizes[axis]
            segments.append(size // done)
        front = [place_of[axis] for axis in reversed(axes)]
        rest = [place for place in range(len(segments)) if place not in front]
        return cls(tuple(segments), (*front, *rest), tuple(segments[place] for place in front))

    def view(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return the contiguous leaf as ``[*leading, *segments of the stored shape]``."""
        return leaf.view(self.segments).permute(self.order)

    def back(self, pieces: torch.Tensor) -> torch.Tensor:
        """Permute such a view back to ``[*segments of the leaf]``: the leaf with unflattened dims."""
        return pieces.permute([self.order.index(dim) for dim in range(len(self.order))])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `view`."""
        return tuple(self.segments[place] for place in self.order)
