"""The plan of the least estimate: min over plans of (sum of delays + the largest rate), with memory.

For a limit T on rates, `within(T)` is the recurrence that adds delays over ways whose rate is at most T: S(T).
S falls as T grows, and the least estimate is min over T of S(T) + T among rates that occur (Alpa enumerates
t_max in the same role).  Here T is found by branch and bound over intervals: plans whose largest rate lies in
[low, high) cost at least S(high) + low.  Evaluating a T inside shows a plan with its own largest rate r <= T;
between r and T nothing can be better, so the interval falls into [low, r) and (T, high).
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autopar.stages.priced import Picked, Priced, crossing_max, crossing_sum, steps_of
from autopar.stages.recurrence import Array, Step, suffixes


@dataclass(frozen=True)
class Estimated:
    """Stages and what the estimate says of them; `bound_s`: no plan of this table and family has less."""

    estimate_s: float
    stages: tuple[Picked, ...]
    bound_s: float


@dataclass(frozen=True, eq=False)
class Search:
    """Recurrences over one table under one family."""

    priced: Priced

    def within(self, limit: float) -> tuple[float, tuple[Picked, ...]]:
        """S(limit) and a plan that reaches it; infinite and empty where there is none."""
        allowed = self.priced.link_rate <= limit
        cross = crossing_sum(self.priced.passing_s, None if allowed.all() else allowed)
        costs = [np.where(g.rate <= limit, g.delay, math.inf) for g in self.priced.groups]
        found = suffixes(
            lambda position: self._fitting(costs, position, station=False), cross, *self._sizes
        )
        least = [float(best[:, 0, -1].min()) for best in found]
        if not least or not math.isfinite(min(least)):
            return math.inf, ()
        return min(least), self._stages(found, least.index(min(least)) + 1, costs, cross)

    @cached_property
    def slowest(self) -> float:
        """The least that the largest rate can be."""
        cross = crossing_max(self.priced.link_rate, None)
        rates = [group.rate for group in self.priced.groups]
        found = suffixes(
            lambda position: self._fitting(rates, position, station=True), cross, *self._sizes
        )
        return min((float(best[:, 0, -1].min()) for best in found), default=math.inf)

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        priced = self.priced
        return priced.table.borders, priced.problem.positions, priced.devices, priced.most_stages

    def _fitting(self, costs: list[Array], position: int, station: bool) -> list[Step]:
        held = self.priced.in_flight(position)
        fit = [
            np.where(group.flights >= held, cost, math.inf)
            for group, cost in zip(self.priced.groups, costs, strict=True)
        ]
        return steps_of(self.priced.groups, fit if station else None, None if station else fit)

    def _stages(
        self, found: list[Array], stages: int, costs: list[Array], cross: object
    ) -> tuple[Picked, ...]:
        """Walk the recurrence from the front: each step again finds the value that was found."""
        entry = int(found[stages - 1][:, 0, -1].argmin())
        start, left = 0, self.priced.devices
        picked: list[Picked] = []
        for position in range(stages, 0, -1):
            here = self._step(found, position, costs, (entry, start, left))
            number, end, entry = here
            picked.append((start, end, number))
            start, left = end, left - self.priced.table.ways[number].size // self.priced.unit
        return tuple(picked)

    def _step(
        self, found: list[Array], position: int, costs: list[Array], state: tuple[int, int, int]
    ) -> tuple[int, int, int]:
        entry, start, left = state
        held = self.priced.in_flight(position)
        best = (math.inf, 0, 0, 0)
        for group, cost in zip(self.priced.groups, costs, strict=True):
            if group.entry != entry or group.size > left:
                continue
            own = np.where(group.flights[:, start] >= held, cost[:, start], math.inf)
            way = own.argmin(axis=0)
            behind, following = self._behind(found, position, group.exit, left - group.size)
            value = own.min(axis=0) + behind
            end = int(value.argmin())
            if value[end] < best[0]:
                best = (float(value[end]), group.ways[way[end]], end, int(following[end]))
        return best[1:]

    def _behind(
        self, found: list[Array], position: int, exit: int, left: int
    ) -> tuple[Array, np.ndarray[tuple[int, ...], np.dtype[np.intp]]]:
        """[end]: what follows a stage that leaves layout `exit`, and the layout that is read."""
        positions = self.priced.problem.positions
        if position == 1:
            made = np.full(positions, math.inf)
            made[-1] = 0.0 if left == 0 else math.inf
            return made, np.zeros(positions, dtype=np.intp)
        options = found[position - 2][:, :, left] + self.priced.passing_s[:, exit, :].T
        return options.min(axis=0), options.argmin(axis=0)


def least_estimate(
    priced: Priced, enough: float = 0.0, cutoff: float = math.inf
) -> tuple[Estimated | None, list[tuple[Picked, ...]]]:
    """The best plan by the estimate, and every plan that was met on the way.

    It ends when nothing can be better by more than the share `enough`, or than `cutoff`.
    """
    search = Search(priced)
    total, stages = search.within(math.inf)
    if not stages:
        return None, []
    seen = [stages]
    best = (priced.estimate(stages), stages)
    low = search.slowest
    waiting: list[tuple[float, float, float, float]] = []

    def wait(total: float, low: float, high: float) -> None:
        if high > low:
            heapq.heappush(waiting, (total + low, total, low, high))

    wait(total, low, _largest_rate(priced, stages))
    bound = best[0]
    while waiting:
        bound, total, low, high = heapq.heappop(waiting)
        if bound >= min(best[0] * (1 - enough), cutoff):
            break
        high = min(high, np.nextafter(best[0] - total, math.inf))
        middle = (low + high) / 2
        if high <= np.nextafter(low, math.inf):
            middle = low
        found, stages = search.within(middle)
        if stages:
            seen.append(stages)
            estimate = priced.estimate(stages)
            if estimate < best[0]:
                best = (estimate, stages)
            wait(found, low, _largest_rate(priced, stages))
        wait(total, float(np.nextafter(middle, math.inf)), high)
        bound = best[0]
    return Estimated(best[0], best[1], min(bound, best[0])), seen


def _largest_rate(priced: Priced, stages: tuple[Picked, ...]) -> float:
    rates = [0.0]
    for index, (start, end, number) in enumerate(stages):
        way, group, at = priced.look_up(number)
        rates.append(float(group.rate[at, start, end]))
        if index + 1 < len(stages):
            entry = priced.table.ways[stages[index + 1][2]].entry
            rates.append(float(priced.link_rate[end, way.exit, entry]))
    return max(rates)
