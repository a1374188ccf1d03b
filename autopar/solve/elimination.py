"""Exact min-sum variable elimination (bucket elimination; Dechter 1999).

    minimise over x:   sum_t  ticks_t[x_scope(t)]  +  price * nbytes_t[x_scope(t)]

A variable v is eliminated by adding up every table that mentions it, J(s, x_v) over its neighbours'
states s, and replacing them by m(s) = min_{x_v} J(s, x_v).  The order is greedy: the smallest J
first.  Any J no larger than one that was built already is as good; among those the variable comes
first whose tables have been through the fewest eliminations, so that a chain of equal layers is halved
again and again.  Equal tables are one object and are eliminated once: L equal layers cost log L.

Where J would be too large, its tables are split into groups that are minimised apart (mini-buckets;
Dechter and Rish 2003).  Then the result is a lower bound, and the states that are read back are good
but perhaps not best.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from autopar.errors import InfeasibleError
from autopar.problem import Array
from autopar.solve.network import Network

MAX_TABLE = 1 << 25
"""Entries of the largest message that may be built (256 MiB of float64)."""
MAX_DIMS = 60
"""Variables that one table may have: numpy has 64 dims."""


@dataclass(frozen=True, eq=False)
class Message:
    """What is left of the variables eliminated so far: a table over some that are not."""

    scope: tuple[int, ...]
    table: Array
    depth: int = 0
    """How many eliminations lie behind it."""


@dataclass(frozen=True, eq=False)
class Bucket:
    """One elimination: the tables that mentioned the variable, in groups, and what each group left."""

    variable: int
    groups: tuple[tuple[Message, ...], ...]
    sent: tuple[Message, ...]


@dataclass(frozen=True, eq=False)
class Elimination:
    """All buckets in order, the best states, and a lower bound on every assignment (in ticks)."""

    buckets: tuple[Bucket, ...]
    states: tuple[int, ...]
    bound: float
    is_exact: bool
    largest_table: int
    width: int
    """The largest number of neighbours that a variable had when it was eliminated."""


def eliminate(network: Network, price: float = 0.0, largest: int = MAX_TABLE) -> Elimination:
    """The optimum of ticks + price * bytes; `InfeasibleError` where no assignment is finite.

    ``price=inf`` minimises bytes alone, over the assignments of finite ticks.
    """
    work = _Work(network, price, largest)
    buckets = []
    while (variable := work.next_variable()) is not None:
        buckets.append(work.eliminate(variable))
    if not math.isfinite(work.constant):
        raise InfeasibleError("No combination of candidates is allowed by the constraints.")
    return Elimination(
        tuple(buckets),
        read_back(buckets, len(network.sizes)),
        work.constant,
        all(len(bucket.groups) <= 1 for bucket in buckets),
        work.largest_seen,
        work.width,
    )


def read_back(buckets: Sequence[Bucket], count: int) -> tuple[int, ...]:
    """Each variable's best state given those of the variables eliminated after it; ties: the first."""
    states = [0] * count
    for bucket in reversed(buckets):
        rows = [
            message.table[
                tuple(slice(None) if i == bucket.variable else states[i] for i in message.scope)
            ]
            for group in bucket.groups
            for message in group
        ]
        states[bucket.variable] = int(np.argmin(sum(rows))) if rows else 0
    return tuple(states)


@dataclass
class Sums:
    """Sums and minima of tables, each done once for equal tables at equal places."""

    _weighed: dict[tuple[int, int], Array] = field(default_factory=dict)
    _least: dict[object, tuple[Array, object]] = field(default_factory=dict)

    def weighed(self, ticks: Array, nbytes: Array, price: float) -> Array:
        """Ticks and priced bytes of a table.  Rounded down: a lower bound stays one."""
        if price == 0.0:
            return ticks
        key = (id(ticks), id(nbytes))
        if key not in self._weighed:
            if math.isinf(price):
                self._weighed[key] = np.where(np.isfinite(ticks), nbytes, np.inf)
            else:
                self._weighed[key] = ticks + np.floor(price * nbytes)
        return self._weighed[key]

    def least(self, group: tuple[Message, ...], variable: int, scope: tuple[int, ...]) -> Array:
        """min over the variable of the sum of the group's tables, over `scope`."""
        places = {index: place for place, index in enumerate((*scope, variable))}
        key = tuple((id(m.table), tuple(places[i] for i in m.scope)) for m in group)
        key = tuple(sorted(key))
        if key not in self._least:
            # Ids are keys: the tables they belong to must not be freed.
            self._least[key] = (_least(group, variable, scope), group)
        return self._least[key][0]


def _least(group: Sequence[Message], variable: int, scope: tuple[int, ...]) -> Array:
    """Without building the joint table: one state of the variable after the other."""
    least: Array | None = None
    count = next(m.table.shape[m.scope.index(variable)] for m in group)
    for state in range(count):
        total = _sum_at(group, variable, state, scope)
        least = total if least is None else np.minimum(least, total)
    assert least is not None
    return least


def _sum_at(group: Sequence[Message], variable: int, state: int, scope: tuple[int, ...]) -> Array:
    total: Array = np.zeros(())
    for message in group:
        place = message.scope.index(variable)
        row = np.take(message.table, state, axis=place)
        rest = tuple(index for index in message.scope if index != variable)
        total = total + aligned(row, rest, scope)
    return total


def aligned(table: Array, scope: tuple[int, ...], full: tuple[int, ...]) -> Array:
    """The table as a view whose dims are those of `full`, of size one where it has none."""
    order = sorted(range(len(scope)), key=lambda place: full.index(scope[place]))
    shape = [table.shape[scope.index(index)] if index in scope else 1 for index in full]
    return table.transpose(order).reshape(shape)


class _Work:
    """The tables that are left, and who mentions what."""

    def __init__(self, network: Network, price: float, largest: int) -> None:
        self.sizes, self._largest = network.sizes, largest
        self.constant = 0.0
        self.largest_seen, self.width = 1, 0
        self._heaviest = 1
        self._sums = Sums()
        self._tables: dict[int, Message] = {}
        self._mentions: defaultdict[int, set[int]] = defaultdict(set)
        self._serial = 0
        for table in network.tables:
            priced = self._sums.weighed(table.ticks, table.nbytes, price)
            self._add(Message(table.scope, priced))
        self._left = set(range(len(self.sizes)))
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
        """Minimise the variable out of the tables it is in, and keep what that leaves."""
        touching = tuple(self._tables[serial] for serial in sorted(self._mentions[variable]))
        for serial in tuple(self._mentions[variable]):
            self._drop(serial)
        self._left.discard(variable)
        groups = tuple(self._groups(touching, variable))
        sent = tuple(self._send(group, variable) for group in groups)
        neighbours = {index for message in sent for index in message.scope}
        for index in neighbours:
            heapq.heappush(self._queue, (*self._urgency(index), index))
        self.width = max(self.width, len(neighbours))
        return Bucket(variable, groups, sent)

    def _send(self, group: tuple[Message, ...], variable: int) -> Message:
        scope = self._scope(group, variable)
        least = self._sums.least(group, variable, scope)
        message = Message(scope, least, 1 + max(m.depth for m in group))
        self.largest_seen = max(self.largest_seen, least.size * self.sizes[variable])
        self._add(message)
        return message

    def _groups(
        self, touching: tuple[Message, ...], variable: int
    ) -> Iterator[tuple[Message, ...]]:
        """All tables together if their message is small enough; else as few groups as fit, greedily."""
        group: tuple[Message, ...] = ()
        for message in sorted(touching, key=lambda m: -m.table.size):
            wider = (*group, message)
            if group and self._entries(wider, variable) > self._largest:
                yield group
                wider = (message,)
            group = wider
        if group:
            yield group

    def _entries(self, group: tuple[Message, ...], variable: int) -> int:
        scope = self._scope(group, variable)
        entries = math.prod(self.sizes[index] for index in scope)
        return entries if len(scope) <= MAX_DIMS else self._largest + 1

    @staticmethod
    def _scope(group: tuple[Message, ...], variable: int) -> tuple[int, ...]:
        return tuple(sorted({index for m in group for index in m.scope} - {variable}))

    def _urgency(self, variable: int) -> tuple[int, int]:
        messages = [self._tables[serial] for serial in self._mentions[variable]]
        neighbours = {index for message in messages for index in message.scope} | {variable}
        weight = math.prod(self.sizes[index] for index in neighbours)
        depth = max((message.depth for message in messages), default=0)
        return max(weight, self._heaviest), depth

    def _add(self, message: Message) -> None:
        if not message.scope:
            self.constant += float(message.table)
            return
        self._tables[self._serial] = message
        for index in message.scope:
            self._mentions[index].add(self._serial)
        self._serial += 1

    def _drop(self, serial: int) -> None:
        for index in self._tables.pop(serial).scope:
            self._mentions[index].discard(serial)
