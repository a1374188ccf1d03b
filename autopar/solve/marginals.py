"""What the best assignment costs for each state of each variable, from one elimination.

An elimination sends a message m(s) from each bucket to a later one.  Going back, the later bucket
tells what the best completion outside costs,  d(s) = min J_later - m(s);  the bucket's own joint
table plus d holds the cost of the best whole assignment for each of its entries (max-marginals of a
junction tree; Lauritzen and Spiegelhalter 1988, in the min-sum semiring).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from autopar.solve.elimination import Elimination, aligned
from autopar.solve.order import Bucket
from autopar.solve.problem import Array


@dataclass(frozen=True, eq=False)
class Marginals:
    """Priced ticks of the best assignment that has one state, and of the rest of one."""

    of_states: tuple[Array, ...]
    """By variable: the cost of the best assignment for each of its states."""
    outside: tuple[Array, ...]
    """By bucket: over the scope of its message, the least cost of everything behind that message."""


def marginals(found: Elimination) -> Marginals:
    """Exact where the elimination is; its order must have one group per bucket."""
    order = found.order
    assert order.is_exact
    of_states = [np.full(size, found.bound) for size in order.network.sizes]
    outside: list[Array] = [np.zeros(())] * len(order.buckets)
    senders = _senders(found)
    for place in reversed(range(len(order.buckets))):
        bucket = order.buckets[place]
        if not bucket.groups:
            continue
        scope, joint = _joint(found, bucket)
        message = order.messages[bucket.sent[0]]
        value = found.values[message.content]
        rest = outside[place] if message.scope else np.array(found.bound - float(value))
        whole = joint + aligned(rest, message.scope, scope)
        of_states[bucket.variable] = _least_over(whole, scope, (bucket.variable,))
        for sender in senders[place]:
            sent = order.messages[order.buckets[sender].sent[0]]
            least = _least_over(whole, scope, sent.scope)
            outside[sender] = _without(least, found.values[sent.content])
    return Marginals(tuple(of_states), tuple(outside))


def _senders(found: Elimination) -> dict[int, list[int]]:
    """By bucket: the buckets whose messages it received."""
    receiver = {
        number: place
        for place, bucket in enumerate(found.order.buckets)
        for group in bucket.groups
        for number in group
    }
    senders: defaultdict[int, list[int]] = defaultdict(list)
    for place, bucket in enumerate(found.order.buckets):
        for number in bucket.sent:
            if number in receiver:
                senders[receiver[number]].append(place)
    return senders


def _joint(found: Elimination, bucket: Bucket) -> tuple[tuple[int, ...], Array]:
    (group,) = bucket.groups
    messages = [found.order.messages[number] for number in group]
    scope = tuple(sorted({index for message in messages for index in message.scope}))
    total = np.zeros([found.order.network.sizes[index] for index in scope])
    for message in messages:
        total = total + aligned(found.values[message.content], message.scope, scope)
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
