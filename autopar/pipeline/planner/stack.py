"""Stacks the ways of a table into arrays, by their number of devices and their entry and exit layouts.

A way that another one dominates in every figure on every range is dropped: it improves no plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autopar.pipeline.planner.recurrence import Array
from autopar.pipeline.planner.table import StageOption, StageProblem, StageTable

Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Stack:
    """Ways of one size (in units of devices) between two layouts; arrays are [way, cell].

    A *cell* is a range [start, end) that some way offers and that fits into memory; cells are sorted.

    starts, ends   of each cell
    forward        seconds of a microbatch's forward
    inputs         its input gradient
    weights        its weight gradient
    once           exposed seconds once per step
    hidden         seconds once per step that can overlap compute
    flights        microbatches in flight that fit; -1 if the range is not offered or needs more memory
                   even with none in flight
    splitting      additional seconds of the input gradient if the weight gradient is computed separately
    """

    size: int
    entry: int
    exit: int
    ways: tuple[int, ...]
    starts: Ints
    ends: Ints
    forward: Array
    inputs: Array
    weights: Array
    once: Array
    hidden: Array
    flights: Array
    splitting: Array

    @cached_property
    def split(self) -> Stack:
        """The stack for split backwards."""
        if not self.splitting.any():
            return self
        return replace(
            self, inputs=self.inputs + self.splitting, splitting=np.zeros_like(self.splitting)
        )

    @cached_property
    def apart(self) -> Array:
        """Seconds of a microbatch without its weight gradient."""
        return self.forward + self.inputs

    @cached_property
    def micro(self) -> Array:
        """Seconds of a microbatch, forward and backward."""
        return self.apart + self.weights

    @cached_property
    def _cells(self) -> dict[tuple[int, int], int]:
        pairs = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return {at: cell for cell, at in enumerate(pairs)}

    def cell(self, start: int, end: int) -> int | None:
        """Return the index of a range's cell; None if no way fits there."""
        return self._cells.get((start, end))

    def starting(self, start: int) -> slice:
        """Return the cells of the ranges that begin at `start`."""
        low, high = np.searchsorted(self.starts, (start, start + 1))
        return slice(int(low), int(high))

    def spread(self, cells: Array, positions: int) -> Array:
        """Return figures per cell as an array [start, end], infinite elsewhere."""
        made = np.full((positions, positions), math.inf)
        made[self.starts, self.ends] = cells
        return made

    def by_flights(self, costs: Array) -> Array:
        """Return [n, cell]: the least cost among the n ways that hold the most microbatches."""
        least = np.full((len(self.ways) + 1, len(self.starts)), math.inf)
        np.minimum.accumulate(costs.take(self._order), axis=0, out=least[1:])
        return least

    def fitting(self, held: int) -> Ints:
        """Return [cell]: how many ways can hold `held` microbatches."""
        if held not in self._fitting:
            self._fitting[held] = (self.flights >= held).sum(axis=0)
        return self._fitting[held]

    @cached_property
    def every_cell(self) -> Ints:
        """The indices of all cells."""
        return np.arange(len(self.starts))

    @cached_property
    def _order(self) -> Ints:
        """[n, cell]: flat indices into [way, cell], with ways sorted by falling `flights` per cell."""
        ways = np.argsort(-self.flights, axis=0, kind="stable")
        return ways * len(self.starts) + self.every_cell

    @cached_property
    def _fitting(self) -> dict[int, Ints]:
        return {}


def unit_of(problem: StageProblem, table: StageTable) -> int:
    """Return the common divisor of all submesh sizes, the unit in which devices are counted."""
    return math.gcd(*(way.size for way in table.ways), problem.devices)


def stacks_of(problem: StageProblem, table: StageTable) -> tuple[Stack, ...]:
    """Return the stacks of all undominated ways; they are cached in the table."""
    key = problem.devices, problem.memory_nbytes
    known: dict[object, tuple[Stack, ...]] = table.remembered
    if key not in known:
        known[key] = _stacks(problem, table)
    return known[key]


def _stacks(problem: StageProblem, table: StageTable) -> tuple[Stack, ...]:
    kinds: dict[tuple[int, int, int], list[int]] = {}
    for index, way in enumerate(table.ways):
        kinds.setdefault((way.size, way.entry, way.exit), []).append(index)
    unit = unit_of(problem, table)
    return tuple(
        _stack(problem, table, (size // unit, entry, exit), found)
        for (size, entry, exit), found in sorted(kinds.items())
    )


def _stack(
    problem: StageProblem, table: StageTable, kind: tuple[int, int, int], found: Sequence[int]
) -> Stack:
    every = [table.ways[index] for index in found]
    kept = _undominated(every)
    ways = [every[index] for index in kept]
    flights = np.stack([_flights(way, problem.memory_nbytes) for way in ways])
    starts, ends = np.nonzero((flights >= 1).any(axis=0))

    def cells(figures: Iterable[Array]) -> Array:
        return np.stack([each[starts, ends] for each in figures])

    return Stack(
        *kind, tuple(found[index] for index in kept), starts, ends,
        cells(way.forward_s for way in ways),
        cells(way.input_grad_s for way in ways),
        cells(way.weight_grad_s for way in ways),
        cells(once_of(way) for way in ways),
        cells(way.hideable_s for way in ways),
        cells(flights),
        cells(np.where(way.offered, way.splitting_s, 0.0) for way in ways),
    )  # fmt: skip


def _undominated(ways: Sequence[StageOption]) -> list[int]:
    """Return the indices of the undominated ways; of equal ways only the first."""
    corners = np.array([[array[0, -1] for array in _figures(way)] for way in ways])
    may_beat: NDArray[np.bool_] = np.all(corners[:, None] <= corners[None], axis=2)
    kept: list[int] = []
    for index, way in enumerate(ways):
        if any(may_beat[other, index] and _beats(ways[other], way) for other in kept):
            continue
        gone = {other for other in kept if may_beat[index, other] and _beats(way, ways[other])}
        kept = [other for other in kept if other not in gone] + [index]
    return kept


def _figures(way: StageOption) -> list[Array]:
    return [
        way.forward_s, way.input_grad_s, way.weight_grad_s, way.rest_nbytes, way.kept_nbytes,
        way.late_nbytes, way.working_nbytes, way.exposed_s, way.hideable_s, way.splitting_s,
    ]  # fmt: skip


def _beats(one: StageOption, two: StageOption) -> bool:
    """Return whether `one` is at least as good as `two` in every figure, wherever `two` is offered."""
    absent = ~two.offered
    pairs = zip(_figures(one), _figures(two), strict=True)
    return all(mine is theirs or bool(((mine <= theirs) | absent).all()) for mine, theirs in pairs)


def once_of(way: StageOption) -> Array:
    """Return the exposed seconds once per step; reductions overlap the last microbatch's backward."""
    offered = way.offered
    hides = np.where(offered, way.input_grad_s + way.weight_grad_s, 0.0)
    over = np.maximum(0.0, way.hideable_s - hides)
    return np.where(offered, way.exposed_s + over, 0.0)


def _flights(way: StageOption, memory_nbytes: float) -> Array:
    left = memory_nbytes - way.rest_nbytes - way.working_nbytes
    with np.errstate(divide="ignore", invalid="ignore"):
        many = np.where(way.kept_nbytes > 0, np.floor(left / way.kept_nbytes), math.inf)
    return np.where(way.offered & (left >= 0), many, -1.0)
