"""Groups parameters and gradients into buckets, for the runtime and the cost model.

The first bucket is small, so that the first reduction starts early in the backward.  The last one is
full when the backward ends, as the parameters that the forward reads first get their gradients last.
So the reductions of all buckets but the last can overlap with the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

FIRST_NBYTES, NBYTES = 2**20, 25 * 2**20
"""Sizes of the first and of the other buckets, as in DDP (Li et al., VLDB 2020, section 3.2.3)."""
SHARES = (8, 4, 2, 1)
"""Candidates for the minimum number of gradient buckets, of at least `FIRST_NBYTES` each; a plan records
the choice.  With one, the gradients of a small model would all be in the last bucket, with nothing to
overlap with; but each bucket has a latency."""


def buckets(sizes: Sequence[int], *, shares: int = 1) -> Iterator[list[int]]:
    """Yield the indices of the tensors in each bucket, given their sizes in bytes.

    Only a single tensor may exceed the size of a bucket.  `shares` is the minimum number of buckets for
    gradients, which become available during the backward.  Parameters are all available at once, and
    fill buckets of the largest size (one share).
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


def grouped(
    items: Iterable[T],
    key: Callable[[T], Hashable],
    nbytes: Callable[[T], int],
    shares: int = 1,
) -> Iterator[list[T]]:
    """Yield the buckets of items with equal keys, in order; `nbytes` is an item's size."""
    alike: dict[Hashable, list[T]] = {}
    for item in items:
        alike.setdefault(key(item), []).append(item)
    for group in alike.values():
        for places in buckets([nbytes(item) for item in group], shares=shares):
            yield [group[place] for place in places]


def in_backward(items: Sequence[T], filled: Iterable[list[T]]) -> list[list[T]]:
    """Return buckets in the order in which a backward fills them; `items` are in the forward's order."""
    place = {id(item): -number for number, item in enumerate(items)}
    return sorted(filled, key=lambda bucket: place[id(bucket[-1])])
