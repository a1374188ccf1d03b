"""Simulates the gradient buckets that a backward fills: when their buffers are allocated and freed.

A bucket whose results are parts of its buffer allocates it with the first gradient, and frees it when
the next bucket is full (`autopar/runtime/reducer.py`).  If gradients are reduced in a lower dtype than
at rest, the sums stay in it until the backward ends, and are then added to the gradients at rest.  The
buffers of other buckets stay throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.memory.recompute_set import Form


@dataclass(frozen=True)
class GradientBucket:
    """The gradients that one bucket reduces."""

    leaves: frozenset[Form]
    nbytes: int
    """Bytes of the buffer, if it is freed in the backward, or 0."""
    kept_nbytes: int
    """Bytes of the parts that are copied out of it, in the memory of gradients at rest."""
    left_nbytes: int = 0
    """Bytes of the sums that wait in other memory for the end of the backward."""


class Filling:
    """The buckets of one backward, in the order in which they are reduced."""

    def __init__(self, buckets: Sequence[GradientBucket]) -> None:
        self.nbytes = self.kept_nbytes = 0
        """Bytes of buffers in use, and of results that were copied out."""
        self._buckets = buckets
        self._waiting = [set(bucket.leaves) for bucket in buckets]
        self._place = {leaf: place for place, each in enumerate(buckets) for leaf in each.leaves}
        self._launched = 0

    def arrive(self, leaf: Form) -> int:
        """Copy a gradient into its bucket; return the largest number of bytes in use meanwhile."""
        place = self._place.get(leaf)
        if place is None:
            return self.nbytes
        if len(self._waiting[place]) == len(self._buckets[place].leaves):
            self.nbytes += self._buckets[place].nbytes
        self._waiting[place].discard(leaf)
        most = self.nbytes
        while self._launched < len(self._buckets) and not self._waiting[self._launched]:
            if self._launched:
                most = max(most, self._drain(self._launched - 1))
            self._launched += 1
        return most

    def finish(self) -> int:
        """End the backward, with zeros for what did not arrive; return the most bytes in use."""
        most = self.nbytes
        for place in range(self._launched, len(self._buckets)):
            for leaf in sorted(self._waiting[place], key=str):
                most = max(most, self.arrive(leaf))
        if self._buckets:
            most = max(most, self._drain(len(self._buckets) - 1))
        for each in self._buckets:
            if each.left_nbytes:
                self.nbytes -= each.left_nbytes
                self.kept_nbytes += each.kept_nbytes
        return most

    def _drain(self, place: int) -> int:
        """Take this rank's sums out of a bucket; return the bytes in use meanwhile."""
        bucket = self._buckets[place]
        stays = bucket.left_nbytes == bucket.nbytes  # the sums are the whole buffer
        most = self.nbytes + (0 if stays else bucket.left_nbytes)
        self.nbytes -= bucket.nbytes - bucket.left_nbytes
        if not bucket.left_nbytes:
            self.kept_nbytes += bucket.kept_nbytes
        return most
