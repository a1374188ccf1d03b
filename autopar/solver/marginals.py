"""What the best assignment costs for each state of each variable, from one elimination.

An elimination sends a message m(s) from each bucket to a later one.  Going back, the later bucket
tells what the best completion outside costs,  d(s) = min J_later - m(s);  the bucket's own joint
table plus d holds the cost of the best whole assignment for each of its entries (max-marginals of a
junction tree; Lauritzen and Spiegelhalter 1988, in the min-sum semiring).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.solver.dominance import States
from autopar.solver.elimination import Elimination, aligned, summed
from autopar.solver.order import Bucket, Message
from autopar.solver.problem import Array


@dataclass(frozen=True, eq=False)
class Marginals:
    """Priced ticks of the best assignment that has one state, and of the rest of one."""

    of_states: tuple[Array, ...]
    """By variable: the cost of the best assignment for each of its states."""
    outside: tuple[Array, ...]
    """By bucket: over the scope of its message, the least cost of everything behind that message."""


@dataclass(frozen=True, eq=False)
class Told:
    """The marginals of one bucket's variable."""

    place: int
    variable: int
    of_states: Array
    outside: Array


def marginals(found: Elimination) -> Marginals:
    """Exact where the elimination is; its order must have one group per bucket."""
    of_states = [np.full(size, found.bound) for size in found.order.network.sizes]
    outside: list[Array] = [np.zeros(())] * len(found.order.buckets)
    for told in going_back(found):
        of_states[told.variable], outside[told.place] = told.of_states, told.outside
    return Marginals(tuple(of_states), tuple(outside))


def going_back(found: Elimination, cutoff: float = math.inf) -> Iterator[Told]:
    """Bucket by bucket, the last first; those without a message tell nothing.

    With a `cutoff`, what costs more is only known to do so: it is infinite, and `outside` is of the
    states that are left.  Few may be, and then the tables of all that follows are small.
    """
    order = found.order
    assert order.is_exact
    outside: list[Array] = [np.zeros(())] * len(order.buckets)
    left = _Left(found)
    senders = _senders(found)
    for place in reversed(range(len(order.buckets))):
        bucket = order.buckets[place]
        if not bucket.groups:
            continue
        scope, joint = _joint(left, bucket)
        message = order.messages[bucket.sent[0]]
        rest = outside[place] if message.scope else found.bound - left.of(message)
        whole = joint + aligned(rest, message.scope, scope)
        least = _least_over(whole, scope, (bucket.variable,))
        kept = least <= cutoff
        yield Told(place, bucket.variable, np.where(kept, least, np.inf), outside[place])
        left.keep(bucket.variable, kept)
        whole = whole.compress(kept, axis=scope.index(bucket.variable))
        for sender in senders[place]:
            sent = order.messages[order.buckets[sender].sent[0]]
            outside[sender] = _without(_least_over(whole, scope, sent.scope), left.of(sent))


class _Left:
    """Which states of the variables that were visited may still be had; of the others, all."""

    def __init__(self, found: Elimination) -> None:
        self.found = found
        self._states: list[States | None] = [None] * len(found.order.network.sizes)

    def keep(self, variable: int, marked: NDArray[np.bool_]) -> None:
        """From now on a variable has only the states that are marked."""
        if not marked.all():
            self._states[variable] = np.flatnonzero(marked)

    def of(self, message: Message) -> Array:
        """The message over the states that are left."""
        table = self.found.values[message.content]
        for dim, index in enumerate(message.scope):
            states = self._states[index]
            if states is not None:
                table = table.take(states, axis=dim)
        return table


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


def _joint(left: _Left, bucket: Bucket) -> tuple[tuple[int, ...], Array]:
    (group,) = bucket.groups
    messages = [left.found.order.messages[number] for number in group]
    scope = tuple(sorted({index for message in messages for index in message.scope}))
    return scope, summed([aligned(left.of(message), message.scope, scope) for message in messages])


def _least_over(table: Array, scope: tuple[int, ...], wanted: tuple[int, ...]) -> Array:
    dropped = tuple(place for place, index in enumerate(scope) if index not in wanted)
    least: Array = table.min(axis=dropped, initial=np.inf) if dropped else table
    return least


def _without(whole: Array, part: Array) -> Array:
    """whole - part, where what is forbidden stays forbidden."""
    with np.errstate(invalid="ignore"):
        rest = whole - part
    return np.where(np.isposinf(part), np.inf, rest)
