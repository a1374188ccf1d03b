"""What the best assignment costs for each state of each variable, from one elimination.

An elimination sends a message m(s) from each bucket to a later one.  Going back, the later bucket
tells what the best completion outside costs,  d(s) = min J_later - m(s);  the bucket's own joint
table plus d holds the cost of the best whole assignment for each of its entries (max-marginals of a
junction tree; Lauritzen and Spiegelhalter 1988, in the min-sum semiring).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.problem import Array
from autopar.solve.elimination import Bucket, Elimination, aligned


@dataclass(frozen=True, eq=False)
class Marginals:
    """Ticks (with priced bytes) of the best assignment that has one state, and of the rest of one."""

    of_states: tuple[Array, ...]
    """By variable: the cost of the best assignment for each of its states."""
    outside: tuple[Array, ...]
    """By bucket: over the scope of its message, the least cost of everything behind that message."""


def marginals(found: Elimination, sizes: Sequence[int]) -> Marginals:
    """Exact where the elimination is; `found` must have one group per bucket."""
    assert found.is_exact
    receiver = {
        id(message): place
        for place, bucket in enumerate(found.buckets)
        for group in bucket.groups
        for message in group
    }
    of_states = [np.full(size, found.bound) for size in sizes]
    outside: list[Array] = [np.zeros(())] * len(found.buckets)
    waiting: dict[int, list[int]] = {}
    for place, bucket in enumerate(found.buckets):
        for message in bucket.sent:
            waiting.setdefault(receiver.get(id(message), -1), []).append(place)
    for place in reversed(range(len(found.buckets))):
        bucket = found.buckets[place]
        if not bucket.groups:
            continue
        scope, joint = _joint(bucket, sizes)
        message = bucket.sent[0]
        rest = outside[place] if message.scope else np.array(found.bound - float(message.table))
        whole = joint + aligned(rest, message.scope, scope)
        of_states[bucket.variable] = _least_over(whole, scope, (bucket.variable,))
        for sender in waiting.get(place, ()):
            sent = found.buckets[sender].sent[0]
            outside[sender] = _without(_least_over(whole, scope, sent.scope), sent.table)
    return Marginals(tuple(of_states), tuple(outside))


def _joint(bucket: Bucket, sizes: Sequence[int]) -> tuple[tuple[int, ...], Array]:
    (group,) = bucket.groups
    scope = tuple(sorted({index for message in group for index in message.scope}))
    total = np.zeros([sizes[index] for index in scope])
    for message in group:
        total = total + aligned(message.table, message.scope, scope)
    return scope, total


def _least_over(table: Array, scope: tuple[int, ...], wanted: tuple[int, ...]) -> Array:
    dropped = tuple(place for place, index in enumerate(scope) if index not in wanted)
    least: Array = table.min(axis=dropped) if dropped else table
    return least


def _without(whole: Array, part: Array) -> Array:
    """whole - part, where what is forbidden stays forbidden."""
    with np.errstate(invalid="ignore"):
        rest = whole - part
    return np.where(np.isposinf(part), np.inf, rest)
