"""Gradient synchronisation of a worker: one reduction over its mesh per step, overlapped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from autopar.runtime import _torch
from autopar.runtime.axes import Axes
from autopar.runtime.bucket import Bucket
from autopar.runtime.pipeline.filling import Filling
from autopar.runtime.reducer import in_buckets
from autopar.runtime.sharded_parameter import ShardedParameter


class Gradients:
    """The gradients of a worker's parameters, in buckets per stage.

    `last` maps each parameter's name to the worker's stage that completes its gradient.  The gradients
    that a stage completes form at least `shares` buckets.
    """

    def __init__(
        self, slots: Sequence[ShardedParameter], last: Mapping[str, int], axes: Axes, shares: int
    ) -> None:
        self._slots = [slot for slot in slots if slot.parameter.requires_grad]
        by_stage: defaultdict[int, list[ShardedParameter]] = defaultdict(list)
        for slot in reversed(self._slots):
            if slot.hops:
                by_stage[last.get(slot.name, 0)].append(slot)
        self._fillings = {
            stage: Filling(
                [Bucket(group, axes, group[0].local.dtype) for group in in_buckets(found, shares)]
            )
            for stage, found in sorted(by_stage.items())
        }

    def filling(self, stage: int) -> Filling | None:
        """Return the buckets that this stage completes, or None if nothing has to be reduced."""
        return self._fillings.get(stage)

    def finish(self) -> None:
        """Wait for all reductions, and set every parameter's gradient."""
        for filling in self._fillings.values():
            filling.finish()
        with _torch.untracked():
            for slot in self._slots:
                if not slot.hops and slot.leaf.grad is not None:
                    slot.settle(slot.leaf.grad.to(slot.local.dtype))
            for slot in self._slots:
                slot.untouch()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        with _torch.untracked():
            for slot in self._slots:
                slot.drop()
                slot.parameter.grad = None


def last_stages(order: Sequence[int], stages: Mapping[int, Iterable[str]]) -> dict[str, int]:
    """Return, by parameter, the last stage in `order` that reads it."""
    found: dict[str, int] = {}
    for stage in order:
        found |= dict.fromkeys(stages[stage], stage)
    return found
