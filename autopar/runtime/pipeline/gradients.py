"""Gradients of a worker's parameters: summed over its mesh once per step, while others still run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from autopar.runtime.bucket import Bucket
from autopar.runtime.context import Axes
from autopar.runtime.pipeline.filling import Filling
from autopar.runtime.reducer import in_buckets
from autopar.runtime.sharded_parameter import ShardedParameter


class Gradients:
    """`last` says of each slot, by name, after which of the worker's stages it is complete.

    What is complete with a stage makes `shares` buckets at least.
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
        """What is complete with this stage, if it is summed."""
        return self._fillings.get(stage)

    def finish(self) -> None:
        """Wait for all sums, and set every parameter's gradient."""
        for filling in self._fillings.values():
            filling.finish()
        for slot in self._slots:
            if not slot.hops and slot.leaf.grad is not None:
                slot.settle(slot.leaf.grad.to(slot.local.dtype))
        for slot in self._slots:
            slot.untouch()

    def zero_grad(self) -> None:
        """Drop every gradient."""
        for slot in self._slots:
            slot.drop()
            slot.parameter.grad = None


def last_stages(order: Sequence[int], stages: Mapping[int, Iterable[str]]) -> dict[str, int]:
    """By parameter: of the stages that read it, the one that comes last in `order`."""
    found: dict[str, int] = {}
    for stage in order:
        found |= dict.fromkeys(stages[stage], stage)
    return found
