"""Topological orders of groups, whose prefixes are a first choice of downsets."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from autopar.pipeline.planner.lattice.exact import Array
from autopar.pipeline.planner.lattice.order import Ints, Order


def usual_sequences(order: Order) -> Iterator[Ints]:
    """Yield some orders: as numbered, by depth, and depth first from either end."""
    count = len(order)
    yield np.arange(count)
    depth = np.zeros(count)
    height = np.zeros(count)
    for group in range(count):
        depth[group] = max(depth[order.before[:, group]], default=-1.0) + 1
    for group in reversed(range(count)):
        height[group] = max(height[order.before[group]], default=-1.0) + 1
    yield ranked(order, depth)
    yield ranked(order, -height)
    yield depth_first(order)
    turned = Order(np.ascontiguousarray(order.before[::-1, ::-1].T))
    yield np.ascontiguousarray(count - 1 - depth_first(turned)[::-1])


def ranked(order: Order, rank: Array) -> Ints:
    """Return the topological order that always takes the ready group of least rank."""
    covers = order.covers
    waits = covers.sum(axis=0)
    ready = [(rank[group], group) for group in np.flatnonzero(waits == 0)]
    heapq.heapify(ready)
    sequence = []
    while ready:
        _, group = heapq.heappop(ready)
        sequence.append(group)
        waits[covers[group]] -= 1
        for other in np.flatnonzero(covers[group] & (waits == 0)):
            heapq.heappush(ready, (rank[other], other))
    return np.array(sequence, dtype=np.int64)


def depth_first(order: Order) -> Ints:
    """Return the topological order that always takes the group that became ready last."""
    covers = order.covers
    waits = covers.sum(axis=0)
    ready = list(np.flatnonzero(waits == 0)[::-1])
    sequence = []
    while ready:
        group = ready.pop()
        sequence.append(group)
        waits[covers[group]] -= 1
        ready += list(np.flatnonzero(covers[group] & (waits == 0))[::-1])
    return np.array(sequence, dtype=np.int64)
