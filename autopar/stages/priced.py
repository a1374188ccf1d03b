"""One table under one family of schedules: what each way costs, in the arrays that recurrences need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autopar.stages.families import Family
from autopar.stages.recurrence import Array, Crossing, Step
from autopar.stages.table import StageProblem, StageTable, Way

Picked = tuple[int, int, int]
"""A stage: from cut, to cut, index of the way."""


@dataclass(frozen=True, eq=False)
class Group:
    """Ways of one size between two layouts; arrays are [way, start, end]."""

    size: int
    entry: int
    exit: int
    ways: tuple[int, ...]
    forward: Array
    micro: Array
    apart: Array
    delay: Array
    rate: Array
    once: Array
    hidden: Array
    flights: Array


@dataclass(frozen=True, eq=False)
class Priced:
    """`unit`: the sizes' common divisor, in which devices are counted."""

    problem: StageProblem
    table: StageTable
    family: Family

    @cached_property
    def unit(self) -> int:
        """Submeshes come in multiples of it."""
        return math.gcd(*(way.size for way in self.table.ways), self.problem.devices)

    @property
    def devices(self) -> int:
        """In units."""
        return self.problem.devices // self.unit

    @cached_property
    def most_stages(self) -> int:
        """No more than layers, devices, or what was asked."""
        smallest = min(way.size for way in self.table.ways)
        asked = self.problem.most_stages or self.problem.positions
        return min(self.problem.positions - 1, self.problem.devices // smallest, asked)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All ways."""
        kinds: dict[tuple[int, int, int], list[int]] = {}
        for index, way in enumerate(self.table.ways):
            kinds.setdefault((way.size // self.unit, way.entry, way.exit), []).append(index)
        return tuple(self._group(*kind, found) for kind, found in sorted(kinds.items()))

    def _group(self, size: int, entry: int, exit: int, indices: Sequence[int]) -> Group:
        ways = [self.table.ways[index] for index in indices]
        micro = np.stack([way.seconds for way in ways])
        apart = np.stack([way.forward_s + way.input_grad_s for way in ways])
        weights = np.stack([way.weight_grad_s for way in ways])
        once = np.stack([once_of(way) for way in ways])
        with np.errstate(invalid="ignore"):
            delay = np.maximum(0.0, micro - self.family.saved * weights)
            delay = np.where(np.isfinite(micro), delay, math.inf)
            rate = self.table.microbatches * micro + once - np.where(np.isfinite(delay), delay, 0.0)
        return Group(
            size, entry, exit, tuple(indices),
            np.stack([way.forward_s for way in ways]), micro, apart, delay, rate, once,
            np.stack([way.hideable_s for way in ways]),
            np.stack([self._flights(way) for way in ways]),
        )  # fmt: skip

    def _flights(self, way: Way) -> Array:
        """How many microbatches in flight fit."""
        left = self.problem.memory_nbytes - way.rest_nbytes - way.working_nbytes
        with np.errstate(divide="ignore", invalid="ignore"):
            many = np.where(way.kept_nbytes > 0, np.floor(left / way.kept_nbytes), math.inf)
        return np.where(way.offered & (left >= 0), many, -1.0)

    def in_flight(self, position: int) -> int:
        """Of a stage so far from the end."""
        return self.family.in_flight(position, self.table.microbatches)

    @cached_property
    def passing_s(self) -> Array:
        """[cut, exit, entry]: seconds of a transfer there and back."""
        return self.table.send_s + self.table.return_s + 2 * self.table.latency_s

    @cached_property
    def busy_s(self) -> Array:
        """[cut, exit, entry]: how long a microbatch occupies the busier direction of the link."""
        return np.maximum(self.table.send_s, self.table.return_s)

    @cached_property
    def link_rate(self) -> Array:
        """What a link adds to the longest of all rates."""
        return (self.table.microbatches - 1) * self.busy_s

    def estimate(self, stages: Sequence[Picked]) -> float:
        """Sum of delays and the largest rate; infinite where memory does not do."""
        total, rates = 0.0, [0.0]
        for index, (start, end, number) in enumerate(stages):
            way, group, at = self.look_up(number)
            here = (at, start, end)
            if group.flights[here] < self.in_flight(len(stages) - index):
                return math.inf
            total += float(group.delay[here])
            rates.append(float(group.rate[here]))
            if index + 1 < len(stages):
                cut = (end, way.exit, self.table.ways[stages[index + 1][2]].entry)
                total += float(self.passing_s[cut])
                rates.append(float(self.link_rate[cut]))
        return total + max(rates)

    def look_up(self, number: int) -> tuple[Way, Group, int]:
        """A way with its group and its place there."""
        for group in self.groups:
            if number in group.ways:
                return self.table.ways[number], group, group.ways.index(number)
        raise IndexError(number)


def once_of(way: Way) -> Array:
    """Seconds once a step that nothing hides: reductions run beside the last microbatch's backward."""
    with np.errstate(invalid="ignore"):
        hides = way.input_grad_s + way.weight_grad_s
        over = np.where(way.offered, np.maximum(0.0, way.hideable_s - hides), 0.0)
    made: Array = np.where(way.offered, way.exposed_s, 0.0) + over
    return made


def crossing_sum(passing: Array, allowed: Array | None = None) -> Crossing:
    """H = min over e of passing + F; transfers that are not allowed do not exist."""
    cost = passing if allowed is None else np.where(allowed, passing, math.inf)

    def cross(best: Array, cuts: slice) -> Array:
        if cost.shape[1] == 1:
            return best + cost[cuts, 0, 0][None, :, None]
        made = cost[cuts].transpose(1, 2, 0)[:, :, :, None] + best[None]
        return np.asarray(made.min(axis=1))

    return cross


def crossing_max(station: Array, passing: Array | None) -> Crossing:
    """H = min over e of max(station, passing + F)."""

    def cross(best: Array, cuts: slice) -> Array:
        far = best[None]
        if passing is not None:
            far = passing[cuts].transpose(1, 2, 0)[:, :, :, None] + far
        made = np.maximum(station[cuts].transpose(1, 2, 0)[:, :, :, None], far)
        return np.asarray(made.min(axis=1))

    return cross


def steps_of(
    groups: Sequence[Group], stations: Sequence[Array] | None, heads: Sequence[Array] | None
) -> list[Step]:
    """The least station and the least head of each group's ways, apart from each other."""
    return [
        Step(
            group.size, group.entry, group.exit,
            None if stations is None else stations[index].min(axis=0),
            None if heads is None else heads[index].min(axis=0),
        )
        for index, group in enumerate(groups)
    ]  # fmt: skip
