"""Buckets of one stage of a pipeline: each is summed as soon as its last gradient is there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch

from autopar.runtime.bucket import Bucket


class Filling:
    """All ranks of a worker do the same in the same order, and sums start in the buckets' order."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self.buckets = buckets
        self._launched = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, what autograd has added to a leaf is its whole gradient."""
        hooks = [
            slot.leaf.register_post_accumulate_grad_hook(self.arrived)
            for bucket in self.buckets
            for slot in bucket.slots
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def arrived(self, leaf: torch.Tensor) -> None:
        """The gradient of this leaf is complete."""
        for bucket in self.buckets[self._launched :]:
            for number in bucket.waiting:
                if bucket.slots[number].leaf is leaf:
                    bucket.put(number)
                    self._launch_full()
                    return

    def all_but(self, late: Collection[int]) -> None:
        """The gradients of all leaves are complete but for these, given by id."""
        for bucket in self.buckets[self._launched :]:
            for number in sorted(bucket.waiting):
                if id(bucket.slots[number].leaf) not in late:
                    bucket.put(number)
        self._launch_full()

    def rest(self) -> None:
        """No more gradients come."""
        self.all_but(())

    def finish(self) -> None:
        """Wait for the sums, and set every parameter's gradient."""
        for bucket in self.buckets[: self._launched]:
            bucket.finish()
        self._launched = 0

    def _launch_full(self) -> None:
        for bucket in self.buckets[self._launched :]:
            if bucket.waiting:
                return
            bucket.launch()
            self._launched += 1
