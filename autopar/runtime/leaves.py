"""The leaves of all slots of a model: gathered once per call, not per microbatch of a `train_step`.

A gathered leaf is a copy, and the stored shard may be written between two calls in ways that torch does
not count (``p.data.copy_()``, views of ``p.to_local()`` made earlier).  Whether it was written may
differ by rank, so asking about it would cost an all-reduce that the host waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from autopar.runtime import _torch
from autopar.runtime.axes import Axes
from autopar.runtime.bucket import Bucket
from autopar.runtime.module import Namespace
from autopar.runtime.reducer import in_buckets
from autopar.runtime.sharded_parameter import ShardedParameter, refuse_other_data


class Leaves:
    """Keeps every leaf equal to its stored parameter."""

    def __init__(self, slots: Sequence[ShardedParameter], axes: Axes, tree: Namespace) -> None:
        self._slots = slots
        self._tree = tree
        gathered = [slot for slot in slots if not slot.shares_storage]
        self._buckets = [Bucket(group, axes, group[0].leaf_dtype) for group in in_buckets(gathered)]
        for slot in slots:
            tree.put(slot.name, slot.leaf)

    @property
    def by_name(self) -> dict[str, torch.Tensor]:
        """The leaf of every parameter."""
        return {slot.name: slot.leaf for slot in self._slots}

    def refresh(self, keep: bool = False) -> bool:
        """Bring the leaves up to date; return whether any leaf was replaced by another tensor.

        `keep`: no code of the user's ran since the last refresh, so gathered leaves are reused.
        """
        with _torch.untracked():
            refuse_other_data(self._slots)
            replaced = self._rebuild()
            if not keep:
                self.gather()
        return replaced

    def writes_shown(self) -> Callable[[], None]:
        """Return a function that tells autograd about writes to parameters since now.

        It is called when a backward begins.  A write to a DTensor does not bump the version of its local
        tensor, so autograd would not notice it.
        """
        seen = [slot.version for slot in self._slots]

        def show() -> None:
            for slot, version in zip(self._slots, seen, strict=True):
                if slot.version != version:
                    torch.autograd.graph.increment_version(slot.leaf)

        return show

    def put(self, slot: ShardedParameter, leaf: torch.Tensor) -> None:
        """Replace the leaf that forward and backward read."""
        slot.leaf = leaf
        self._tree.put(slot.name, leaf)

    def gather(self) -> None:
        """Gather the leaves that do not share storage with their shards."""
        for bucket in self._buckets:
            bucket.gather()

    def _rebuild(self) -> bool:
        """Replace leaves over storage that is no longer the parameter's; return whether any were."""
        outdated = [slot for slot in self._slots if not slot.is_current()]
        for slot in outdated:
            self.put(slot, slot.new_leaf())
        return bool(outdated)
