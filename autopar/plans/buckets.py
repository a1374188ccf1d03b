"""Buckets: parameters and gradients that travel together, as they are carried and as they are priced.

The first bucket is small, so that the first reduction starts early in the backward; the last one is full
when the backward ends, as the parameters that the forward reads first get their gradients last.  So
reductions of all buckets but the last have a backward to hide beside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

FIRST_NBYTES, NBYTES = 2**20, 25 * 2**20
"""Sizes of the first and of the other buckets, as in DDP (Li et al., VLDB 2020, section 3.2.3)."""
SHARES = (8, 4, 2, 1)
"""Gradients make at least so many buckets, of `FIRST_NBYTES` at least; a plan says how many.  With one,
those of a small model would be in the last bucket, and hide nowhere; but each has a latency."""


def buckets(sizes: Sequence[int], *, shares: int = 1) -> Iterator[list[int]]:
    """The places of tensors of so many bytes, bucket by bucket; none but a single tensor exceeds one.

    `shares`: gradients fill buckets beside a backward, and make so many of them at least; parameters are
    all there, and fill the largest.
    """
    most = max(FIRST_NBYTES, min(NBYTES, sum(sizes) // shares))
    limit = FIRST_NBYTES
    chosen: list[int] = []
    held = 0
    for place, nbytes in enumerate(sizes):
        if chosen and held + nbytes > limit:
            yield chosen
            chosen, held, limit = [], 0, most
        chosen.append(place)
        held += nbytes
    if chosen:
        yield chosen
