"""Weight versions of a worker whose updates do not wait for microbatches in flight.

A version is a set of leaves: the tensors that forwards and backwards read.  Autograd holds the leaves
of microbatches in flight, so an update must not write into them.  If a version is still needed, the
parameters first move to new storage, and the old leaves keep the old values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch.distributed.tensor import DTensor

from autopar.pipeline.schedules.action import COMPUTE, Action
from autopar.runtime import _torch
from autopar.runtime.leaves import Leaves
from autopar.runtime.sharded_parameter import ShardedParameter


class Versions:
    """The weight versions of a worker with one stage.

    `actions` is the worker's list, which determines how often each version will be used.
    """

    def __init__(
        self, slots: Sequence[ShardedParameter], leaves: Leaves, actions: Sequence[Action]
    ) -> None:
        self._slots, self._leaves = slots, leaves
        self._left = Counter(action.version for action in actions if action.kind in COMPUTE)
        self._newest = 0
        self._kept: dict[int, list[torch.Tensor]] = {0: [slot.leaf for slot in slots]}

    @property
    def kept(self) -> tuple[int, ...]:
        """The versions that are currently kept, as numbers of updates."""
        return tuple(self._kept)

    def use(self, version: int) -> None:
        """Switch to a version for forward and backward; move unreduced gradients to its leaves."""
        for slot, leaf in zip(self._slots, self._kept[version], strict=True):
            if slot.leaf is not leaf:
                leaf.grad, slot.leaf.grad = slot.leaf.grad, None
                self._leaves.put(slot, leaf)

    def used(self, version: int) -> None:
        """Record one use of a version; drop versions that are no longer needed."""
        self._left[version] -= 1
        self._forget()

    def update(self, step: Callable[[], None]) -> None:
        """Make a new version with `step`, which updates parameters that have a gradient in place."""
        self.use(self._newest)
        is_needed = self._left[self._newest] > 0
        if is_needed:
            for slot in self._slots:
                if slot.shares_storage and slot.parameter.grad is not None:
                    assert isinstance(slot.parameter, DTensor)
                    _torch.rehouse(slot.parameter)
        step()
        if is_needed:
            for slot in self._slots:
                self._leaves.put(slot, slot.new_leaf())
        self._leaves.gather()
        self._newest += 1
        self._kept[self._newest] = [slot.leaf for slot in self._slots]
        self._forget()

    def end(self) -> None:
        """Switch to the newest version when no microbatch is in flight."""
        self.use(self._newest)

    def _forget(self) -> None:
        for version in self.kept:
            if version < self._newest and self._left[version] <= 0:
                del self._kept[version]
