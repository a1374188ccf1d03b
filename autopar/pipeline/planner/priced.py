"""A cost table under one schedule family: delays and rates of all ways, and estimates of plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.families import Family
from autopar.pipeline.planner.recurrence import Allowed, Array, Step, spans_of
from autopar.pipeline.planner.stack import Stack, stacks_of, unit_of
from autopar.pipeline.planner.table import StageProblem, StageTable

Picked = tuple[int, int, int]
"""A stage: (start position, end position, index of the way)."""


@dataclass(frozen=True, eq=False)
class Priced:
    """A table under a family; `stacks` has its ways with whole or split backwards, as in the family."""

    problem: StageProblem
    table: StageTable
    family: Family
    stacks: tuple[Stack, ...]

    @cached_property
    def unit(self) -> int:
        """The number of devices of which every submesh size is a multiple."""
        return unit_of(self.problem, self.table)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of layouts, positions and devices (in units), as the recurrences take them."""
        return self.table.borders, self.problem.positions, self.problem.devices // self.unit

    @cached_property
    def most_stages(self) -> int:
        """The maximum number of stages: limited by layers, devices and the problem's own limit."""
        smallest = min(way.size for way in self.table.ways)
        asked = self.problem.most_stages or self.problem.positions
        return min(self.problem.positions - 1, self.problem.devices // smallest, asked)

    def in_flight(self, position: int) -> int:
        """Return the microbatches in flight on a stage at this position from the end."""
        return self.family.in_flight(position, self.table.microbatches)

    def turns(self, position: int) -> float:
        """Return how often a microbatch waits until another one's whole flight ends."""
        held = self.in_flight(position)
        return (self.table.microbatches - held) / held

    @cached_property
    def delays(self) -> tuple[Array, ...]:
        """Per stack, the seconds that one microbatch of a stage adds to the bubble."""
        if not self.family.saved:
            return tuple(stack.micro for stack in self.stacks)
        return tuple(
            np.where(
                np.isfinite(stack.micro),
                np.maximum(0.0, stack.micro - self.family.saved * _finite(stack.weights)),
                math.inf,
            )
            for stack in self.stacks
        )

    @cached_property
    def rates(self) -> tuple[Array, ...]:
        """Per stack, the seconds that a stage adds to the step if it is the slowest."""
        many = self.table.microbatches
        return tuple(
            many * stack.micro + stack.once - _finite(delay)
            for stack, delay in zip(self.stacks, self.delays, strict=True)
        )

    @cached_property
    def flights(self) -> tuple[Array, ...]:
        """Per stack, the seconds that a microbatch in flight spends in a stage."""
        return tuple(s.apart if self.family.splits else s.micro for s in self.stacks)

    @cached_property
    def passing_s(self) -> Array:
        """[cut, exit, entry]: seconds of the transfers of activations and gradients."""
        return self.table.send_s + self.table.return_s + 2 * self.table.latency_s

    @cached_property
    def busy_s(self) -> Array:
        """[cut, exit, entry]: seconds that a microbatch occupies the busier direction of the link."""
        return np.maximum(self.table.send_s, self.table.return_s)

    @cached_property
    def link_rate(self) -> Array:
        """The seconds that a link adds to the step if it is the slowest resource."""
        return (self.table.microbatches - 1) * self.busy_s

    @cached_property
    def places(self) -> dict[int, tuple[int, int]]:
        """For each way that is not dominated: its stack, and its index there."""
        return {
            number: (place, index)
            for place, stack in enumerate(self.stacks)
            for index, number in enumerate(stack.ways)
        }

    def aim(self, stages: Sequence[Picked]) -> float:
        """Return the objective of `search.py`: the sum of the delays plus the largest rate."""
        return sum(self.sum_and_rate(stages))

    def sum_and_rate(self, stages: Sequence[Picked]) -> tuple[float, float]:
        """Return the sum of the delays and the largest rate; both are infinite if memory is exceeded.

        They are computed directly from the definition.
        """
        total, worst, entry = 0.0, 0.0, 0
        for position, (start, end, number) in enumerate(reversed(stages), start=1):
            place, index = self.places[number]
            cell = self.stacks[place].cell(start, end)
            if cell is None or self.stacks[place].flights[index, cell] < self.in_flight(position):
                return math.inf, math.inf
            at = (index, cell)
            if position > 1:
                cut = (end, self.table.ways[number].exit, entry)
                total += float(self.passing_s[cut])
                worst = max(worst, float(self.link_rate[cut]))
            entry = self.table.ways[number].entry
            total += float(self.delays[place][at])
            worst = max(worst, float(self.rates[place][at]), self.turns(position) * total)
        return total, worst

    def estimate(self, stages: Sequence[Picked]) -> float:
        """Return the estimated step, which ranks candidates: the aim with the windows of `period.py`."""
        total, worst = self.sum_and_rate(stages)
        return total + max(worst, self._longest_window(stages)) if total < math.inf else math.inf

    def _longest_window(self, stages: Sequence[Picked]) -> float:
        """Return the seconds after the first flight that the tightest window of `period.py` takes."""
        if self.family.slope is None:
            return 0.0
        sums, passed, entry = [0.0], [0.0], 0
        for position, (start, end, number) in enumerate(reversed(stages), start=1):
            place, index = self.places[number]
            way = self.table.ways[number]
            passed.append(float(self.passing_s[end, way.exit, entry]) if position > 1 else 0.0)
            at = (index, self.stacks[place].cell(start, end))
            sums.append(sums[-1] + passed[-1] + float(self.flights[place][at]))
            entry = way.entry
        held = [self.in_flight(position) for position in range(1, len(sums))]
        many = self.table.microbatches
        return max(
            (many - first) / (first - last + 1) * (sums[x + 1] - sums[z] - passed[z + 1])
            for x, first in enumerate(held)
            for z, last in enumerate(held[: x + 1])
        )


class Fitting:
    """Per stack, the least station and the least head of the ways that fit at a position from the end.

    `offset_at` is subtracted from every head.  Ways whose rates by `rates_at` exceed the limit do not
    fit at that position.  (Rates must not increase from the end to the front.)  Both functions may
    depend on a position only through its number of microbatches in flight: results are cached by that
    number.
    """

    def __init__(
        self,
        priced: Priced,
        stations: Sequence[Array] | None,
        heads: Sequence[Array] | None,
        offset_at: Callable[[int], float] = lambda position: 0.0,
        rates_at: Callable[[int], Sequence[Array]] | None = None,
        limit: float = math.inf,
    ) -> None:
        self.priced, self.stations, self.heads, self.offset_at = priced, stations, heads, offset_at
        self.rates_at, self.limit = rates_at, limit
        known = heads if heads is not None else stations
        assert known is not None
        self.spans = [self._spans(index, costs) for index, costs in enumerate(known)]
        self._steps: dict[int, list[Step]] = {}
        self._ordered: dict[int, Array] = {}

    def _spans(self, index: int, costs: Array) -> list[tuple[int, int, int, int]]:
        stack, size = self.priced.stacks[index], self.priced.problem.positions
        return spans_of(stack.spread(costs.min(axis=0), size) < math.inf)

    def __call__(self, position: int) -> list[Step]:
        """Return the steps at one position."""
        held = self.priced.in_flight(position)
        if held not in self._steps:
            self._steps[held] = self._at(position, held)
        return self._steps[held]

    def anywhere(self) -> list[Allowed]:
        """Return by size the ranges that some way can take at some position.

        The last stage holds the fewest microbatches, and rates are least at the first stage.
        """
        held, positions = self.priced.in_flight(1), self.priced.problem.positions
        found: dict[int, NDArray[np.bool_]] = {}
        rates = None if self.rates_at is None else self.rates_at(self.priced.most_stages)
        for index, stack in enumerate(self.priced.stacks):
            fits = stack.flights >= held
            for costs in (self.stations, self.heads):
                if costs is not None:
                    fits &= costs[index] < math.inf
            if rates is not None:
                fits &= rates[index] <= self.limit
            there = found.setdefault(stack.size, np.zeros((positions, positions), dtype=bool))
            there[stack.starts, stack.ends] |= fits.any(axis=0)
        return list(found.items())

    def _at(self, position: int, held: int) -> list[Step]:
        rates = None if self.rates_at is None else self.rates_at(position)
        made = []
        for index, stack in enumerate(self.priced.stacks):
            if self.spans[index]:
                rate = None if rates is None else rates[index]
                station = self._least(self.stations, index, held, rate)
                head = self._least(self.heads, index, held, rate)
                if head is not None:
                    head -= self.offset_at(position)
                made.append(
                    Step(stack.size, stack.entry, stack.exit, station, head, self.spans[index])
                )
        return made

    def _least(
        self, every: Sequence[Array] | None, index: int, held: int, rate: Array | None
    ) -> Array | None:
        """Return [start, end]: the least cost among the ways of one stack that fit."""
        if every is None:
            return None
        stack, costs = self.priced.stacks[index], every[index]
        if rate is not None:
            fits = (stack.flights >= held) & (rate <= self.limit)
            found = np.where(fits, costs, math.inf).min(axis=0)
        else:
            if id(costs) not in self._ordered:
                self._ordered[id(costs)] = stack.by_flights(costs)
            found = self._ordered[id(costs)][stack.fitting(held), stack.every_cell]
        return stack.spread(found, self.priced.problem.positions)


def price(problem: StageProblem) -> list[Priced]:
    """Price every table under every family."""
    return [
        Priced(problem, table, family, tuple(s.split for s in stacks) if family.splits else stacks)
        for table in problem.tables
        for stacks in (stacks_of(problem, table),)
        for family in problem.families
    ]


def _finite(array: Array) -> Array:
    return np.where(array < math.inf, array, 0.0)
