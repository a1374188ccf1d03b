"""Sums over ranks of compressed gradients: what a bucket does in place of an all-reduce.

What compression leaves out of a step is kept, and added to this rank's gradient of the next step (error
feedback; Karimireddy et al., ICML 2019): over time the weights receive the whole gradient.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import torch
import torch.distributed as dist

from autopar.plans.compressed_messages import compressed_hops, padded_numel, ranks_of
from autopar.plans.hops import Hop
from autopar.request.compression import Compression
from autopar.runtime.axes import Axis
from autopar.runtime.bytewise import BytewiseSum
from autopar.runtime.powersgd import LowRankSum


class CompressedSum(Protocol):
    """The sum of one bucket over one mesh axis, with its state between steps."""

    def run(
        self, current: torch.Tensor, axis: Axis, scatters: bool, unused: Collection[int]
    ) -> Iterator[dist.Work]:
        """Add `current` up over the axis, in place; yield each collective when it has started.

        The last dim of `current` holds the parts of all gradients one after the other; the other dims
        are parts of the same gradient.  With `scatters` only the entry of this rank in the first dim
        has to be right.  `unused` are numbers of gradients that this step has none of.
        """

    def commit(self) -> None:
        """Keep what the step left out, now that it is done."""

    def drop(self) -> None:
        """Forget what a failed step left out."""


def compressed_sums(
    hops: Sequence[Hop], parts: Sequence[tuple[int, ...]], compression: Compression | None
) -> dict[str, CompressedSum]:
    """Return the compressed sums of a bucket by axis; `parts` are the shapes of its gradients' parts."""
    if compression is None:
        return {}
    ranks = ranks_of(hops)
    sizes = [padded_numel(math.prod(part), ranks, compression) for part in parts]

    def made() -> CompressedSum:
        if compression.method == "powersgd":
            return LowRankSum(parts, compression.rank)
        return BytewiseSum(sizes, compression.method)

    return {each.hop.axis: made() for each in compressed_hops(hops, parts[0], compression)}
