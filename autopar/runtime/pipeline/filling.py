"""Gradient buckets of a pipeline stage: each is reduced as soon as its last gradient is complete."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch

from autopar.runtime.bucket import Bucket


class Filling:
    """The buckets of one stage.

    Reductions start in the order of the buckets, so it is the same on all ranks of a worker.
    """

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self.buckets = buckets
        self._launched = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the context, a leaf's gradient is complete when autograd has accumulated into it."""
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
        """Record that the gradient of this leaf is complete; launch buckets that are full."""
        for bucket in self.buckets[self._launched :]:
            for number in bucket.waiting:
                if bucket.slots[number].leaf is leaf:
                    bucket.put(number)
                    self._launch_full()
                    return

    def all_but(self, late: Collection[int]) -> None:
        """Record that all gradients are complete except those of the leaves with the ids `late`."""
        for bucket in self.buckets[self._launched :]:
            for number in sorted(bucket.waiting):
                if id(bucket.slots[number].leaf) not in late:
                    bucket.put(number)
        self._launch_full()

    def rest(self) -> None:
        """Record that all gradients are complete."""
        self.all_but(())

    def finish(self) -> None:
        """Wait for the reductions, and set every parameter's gradient."""
        for bucket in self.buckets[: self._launched]:
            bucket.finish()
        self._launched = 0

    def _launch_full(self) -> None:
        for bucket in self.buckets[self._launched :]:
            if bucket.waiting:
                return
            bucket.launch()
            self._launched += 1
