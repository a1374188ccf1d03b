"""The buffers of gradient buckets over time, before storages are decided (ZeRO-2).

A buffer whose gradients are scattered exists from the first of them until the next bucket is full
(`autopar.memory.filling`).  Which gradients share a bucket depends on all storages.  Here each gradient
is in the bucket that it would be in if all gradients were split as often as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from autopar.cost.once import Once, signature
from autopar.cost.parameters import Storage, frees, gradient_shares
from autopar.cost.prices import Prices
from autopar.ir.graph import Node, Tensor
from autopar.memory.intervals import Interval, Intervals
from autopar.memory.shards import local_nbytes
from autopar.plans.buckets import grouped, in_backward
from autopar.solver.problem import Array, TimedBytes


@dataclass(frozen=True)
class Draining:
    """The buffers of one graph's gradients."""

    intervals: Intervals
    prices: Prices
    once: Once
    _of_ways: dict[int, Mapping[str, Interval]] = field(default_factory=dict, init=False)

    def of_storages(
        self, node: Node, options: Sequence[Storage], nbytes: Array
    ) -> tuple[TimedBytes, ...] | None:
        """Return the bytes of a parameter's storages over time; None if no backward frees a buffer.

        `nbytes`: those that are in use always, by storage.
        """
        tensor, prices = node.outputs[0], self.prices
        freed = np.array([frees(each.stored, each.leaf, prices) for each in options])
        if not self._has_gradient(tensor) or not freed.any():
            return None
        leaves = np.array([local_nbytes(tensor, each.leaf, prices.mesh) for each in options])
        ways = tensor.nbytes // leaves
        found = [TimedBytes(0, self.intervals.times, nbytes)]
        for count in sorted(set(ways[freed].tolist())):

            def buffers(count: int = count) -> Array:
                rests = np.array([int(prices.in_bucket(int(leaf), tensor)) for leaf in leaves])
                return np.where(freed & (ways == count), rests, 0.0)

            table = self.once(buffers, "buffers", options, also=(signature(tensor), count))
            found.append(TimedBytes(*self._interval(tensor.name, count), table))
        return tuple(found)

    def _has_gradient(self, tensor: Tensor) -> bool:
        """Return whether the backward makes a gradient of a weight: one is read, and has elements."""
        is_read = bool(self.intervals.graph.consumers[tensor.name])
        return tensor.differentiable and is_read and tensor.nbytes > 0

    def _interval(self, name: str, ways: int) -> Interval:
        """Return when the buffer of a gradient is in use, with all gradients split so many ways."""
        if ways not in self._of_ways:
            self._of_ways[ways] = self._intervals(ways)
        return self._of_ways[ways][name]

    def _intervals(self, ways: int) -> Mapping[str, Interval]:
        at = self.intervals
        read = (leaf.outputs[0] for leaf in at.graph.parameters_as_read)
        tensors = [tensor for tensor in read if self._has_gradient(tensor)]
        filled = grouped(
            reversed(tensors), lambda t: t.dtype, lambda t: t.nbytes // ways, self._shares
        )
        arrivals = [
            {tensor.name: at.handing(at.first_read(tensor.name)) for tensor in bucket}
            for bucket in in_backward(tensors, filled)
        ]
        found: dict[str, Interval] = {}
        for bucket, following in itertools.zip_longest(arrivals, arrivals[1:]):
            until = at.times if following is None else max(following.values()) + 1
            found |= dict.fromkeys(bucket, (min(bucket.values()), until))
        return found

    @cached_property
    def _shares(self) -> int:
        """The minimum number of buckets."""
        return gradient_shares(self.intervals.graph, self.prices)
