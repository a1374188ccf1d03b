"""Efficiency of matrix products and of fused attention, as a function of their dims.

A kernel divides its output into tiles, and runs a loop over the summed dim for each: a small dim leaves
a part of a tile, of the device, or of the loop unused.  The loss is about a constant number of rows
along each dim, hence

    efficiency = most / (1 + edge * (1/m + 1/n + 1/k))

which is symmetric, so that a product and its two gradients have equal efficiencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShapeEfficiency:
    """The fraction of the arithmetic peak that kernels reach: `most` for large dims; a dim of `edge`
    elements, if alone in being small, halves it.

    The dims of attention are the length of the keys and the size of a head.
    """

    most: float
    edge: float
    source: str
    date: str

    def of(self, dims: Sequence[float]) -> float:
        """Return the efficiency for these dims, of one or more elements each."""
        return self.most / (1.0 + self.edge * sum(1.0 / max(1.0, dim) for dim in dims))

    def figures(self, name: str) -> Iterator[tuple[str, float, str]]:
        """Yield key, value and required range of every number."""
        yield f"{name}.most", self.most, "positive"
        yield f"{name}.most", self.most, "between 0 and 1"
        yield f"{name}.edge", self.edge, "zero or more"
