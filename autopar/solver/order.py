"""In which order variables are eliminated, and which sums that takes: known before any price is.

The order is greedy: the smallest joint table first.  Any table no larger than one that was built
already is as good; among those the variable comes first whose tables have been through the fewest
eliminations, so that a chain of equal layers is halved again and again.  Equal sums of equal tables
are one *content* and are computed once: L equal layers cost log L.

Where a joint table would be too large, its parts are put into groups that are minimised apart
(mini-buckets; Dechter and Rish 2003).
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from autopar.solver.network import Network, Table

MAX_TABLE = 1 << 22
"""Entries of the largest message that may be built (32 MiB of float64)."""
OVERHEAD = 5000
"""Entries in whose time a sum is begun."""
MAX_DIMS = 60
"""Variables that one table may have: numpy has 64 dims."""


@dataclass(frozen=True)
class Message:
    """A table over variables that are not eliminated yet: given, or what eliminations left."""

    scope: tuple[int, ...]
    content: int
    entries: int
    depth: int
    """How many eliminations lie behind it."""


@dataclass(frozen=True)
class Least:
    """The least sum of some contents over one variable, which is the last of `count` places.

    Each content comes with the places of its dims.
    """

    parts: tuple[tuple[int, tuple[int, ...]], ...]
    count: int
    entries: int
    """Of the joint table."""

    @cached_property
    def aligned(self) -> tuple[tuple[int, tuple[int, ...], tuple[slice | None, ...]], ...]:
        """Of each content: how it is transposed and indexed to have all dims, the last one first."""
        full = (self.count - 1, *range(self.count - 1))
        return tuple(
            (
                content,
                tuple(places.index(place) for place in full if place in places),
                tuple(slice(None) if place in places else None for place in full),
            )
            for content, places in self.parts
        )


@dataclass(frozen=True)
class Bucket:
    """One elimination: the messages that mentioned the variable, in groups, and what each group left."""

    variable: int
    groups: tuple[tuple[int, ...], ...]
    sent: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Order:
    """All buckets in order; messages and contents by number."""

    network: Network
    buckets: tuple[Bucket, ...]
    messages: tuple[Message, ...]
    contents: tuple[Table | Least, ...]
    largest_table: int
    width: int
    """The largest number of neighbours that a variable had when it was eliminated."""

    @property
    def is_exact(self) -> bool:
        """Whether no table had to be minimised in parts."""
        return all(len(bucket.groups) <= 1 for bucket in self.buckets)

    @property
    def effort(self) -> int:
        """What one elimination takes, in entries that are added up; each sum costs some, too."""
        return sum(
            OVERHEAD + (content.arrays[0].size if isinstance(content, Table) else content.entries)
            for content in self.contents
        )

    @property
    def constants(self) -> Iterator[int]:
        """Contents over no variable: they add up to the objective."""
        return (message.content for message in self.messages if not message.scope)


def ordered(network: Network, largest: int | None = None, last: int | None = None) -> Order:
    """A greedy order in which no message has more than `largest` entries.

    `last`: a variable that is eliminated after all others.
    """
    work = _Work(network, MAX_TABLE if largest is None else largest, last)
    buckets = []
    while (variable := work.next_variable()) is not None:
        buckets.append(work.eliminate(variable))
    if last is not None:
        buckets.append(work.eliminate(last))
    return Order(
        network,
        tuple(buckets),
        tuple(work.messages),
        tuple(work.contents),
        work.largest_seen,
        work.width,
    )


class _Work:
    """The messages that are left, and who mentions what."""

    def __init__(self, network: Network, largest: int, last: int | None) -> None:
        self.sizes, self._largest = network.sizes, largest
        self.largest_seen, self.width = 1, 0
        self.messages: list[Message] = []
        self.contents: list[Table | Least] = []
        self._number: dict[object, int] = {}
        self._heaviest = 1
        self._mentions: defaultdict[int, set[int]] = defaultdict(set)
        for table in network.tables:
            content = self._content(tuple(map(id, table.arrays)), table)
            self._add(Message(table.scope, content, table.arrays[0].size, 0))
        self._left = set(range(len(self.sizes))) - {last}
        self._burden = [self._counted(index) for index in range(len(self.sizes))]
        self._queue = [(*self._urgency(index), index) for index in self._left]
        heapq.heapify(self._queue)

    def next_variable(self) -> int | None:
        """The variable whose elimination builds the smallest table."""
        while self._queue:
            *urgency, index = heapq.heappop(self._queue)
            if index not in self._left:
                continue
            current = self._urgency(index)
            if current == tuple(urgency):
                self._heaviest = current[0]
                return index
            heapq.heappush(self._queue, (*current, index))
        return None

    def eliminate(self, variable: int) -> Bucket:
        """Minimise the variable out of the messages it is in, and keep what that leaves."""
        touching = sorted(self._mentions[variable])
        for number in touching:
            for index in self.messages[number].scope:
                self._mentions[index].discard(number)
        self._left.discard(variable)
        groups = tuple(self._groups(touching, variable))
        sent = tuple(self._send(group, variable) for group in groups)
        neighbours = {index for number in sent for index in self.messages[number].scope}
        for index in neighbours:
            self._burden[index] = self._counted(index)
            heapq.heappush(self._queue, (*self._urgency(index), index))
        self.width = max(self.width, len(neighbours))
        return Bucket(variable, groups, sent)

    def _send(self, group: tuple[int, ...], variable: int) -> int:
        scope = self._scope(group, variable)
        entries = self._entries(scope)
        place = {index: at for at, index in enumerate((*scope, variable))}
        messages = [self.messages[number] for number in group]
        parts = sorted((m.content, tuple(place[i] for i in m.scope)) for m in messages)
        least = Least(tuple(parts), len(place), entries * self.sizes[variable])
        depth = 1 + max(message.depth for message in messages)
        self.largest_seen = max(self.largest_seen, entries * self.sizes[variable])
        return self._add(Message(scope, self._content(least, least), entries, depth))

    def _groups(self, touching: Sequence[int], variable: int) -> Iterator[tuple[int, ...]]:
        """All together if their message is small enough; else as few groups as fit, greedily."""
        heaviest_first = sorted(touching, key=lambda number: -self.messages[number].entries)
        if touching and self._fits(self._scope(touching, variable)):
            yield tuple(heaviest_first)
            return
        group: tuple[int, ...] = ()
        for number in heaviest_first:
            wider = (*group, number)
            if group and not self._fits(self._scope(wider, variable)):
                yield group
                wider = (number,)
            group = wider
        if group:
            yield group

    def _fits(self, scope: tuple[int, ...]) -> bool:
        return len(scope) <= MAX_DIMS and self._entries(scope) <= self._largest

    def _entries(self, scope: Iterable[int]) -> int:
        return math.prod([self.sizes[index] for index in scope])

    def _scope(self, group: Sequence[int], variable: int) -> tuple[int, ...]:
        found: set[int] = set()
        for number in group:
            found.update(self.messages[number].scope)
        found.discard(variable)
        return tuple(sorted(found))

    def _urgency(self, variable: int) -> tuple[int, int]:
        """Least first: the larger of its joint table and of what was built already; then its depth."""
        weight, depth = self._burden[variable]
        return max(weight, self._heaviest), depth

    def _counted(self, variable: int) -> tuple[int, int]:
        """Entries of the joint table, and the most eliminations behind any of its messages."""
        messages = [self.messages[number] for number in self._mentions[variable]]
        neighbours = {variable}
        depth = 0
        for message in messages:
            neighbours.update(message.scope)
            depth = max(depth, message.depth)
        return self._entries(neighbours), depth

    def _content(self, key: object, made: Table | Least) -> int:
        """The number of a content, which is new only if no equal one was there."""
        if key not in self._number:
            self._number[key] = len(self.contents)
            self.contents.append(made)
        return self._number[key]

    def _add(self, message: Message) -> int:
        number = len(self.messages)
        self.messages.append(message)
        for index in message.scope:
            self._mentions[index].add(number)
        return number
