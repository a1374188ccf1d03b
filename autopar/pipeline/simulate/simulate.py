"""Simulates a schedule under given costs: (Schedule, Costs) -> Simulated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import Action
from autopar.pipeline.schedules.schedule import Schedule
from autopar.pipeline.simulate.engines import Times, by_events, in_order, one_sender_each
from autopar.pipeline.simulate.memory import levels, peaks
from autopar.pipeline.simulate.program import Lane, Program, durations, program, ways
from autopar.pipeline.simulate.reductions import Reduction, reductions
from autopar.pipeline.simulate.values import Costs


@dataclass(frozen=True, slots=True)
class Ran:
    """The execution of an action on its worker, from `start` to `end` seconds."""

    action: Action
    worker: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer of one microbatch between workers, from acquiring its links (`start`) to arrival."""

    lane: Lane
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Simulated:
    """The start and end times of a simulated step, and the figures derived from them."""

    costs: Costs
    program: Program
    times: Times
    reductions: tuple[Reduction, ...]

    @property
    def schedule(self) -> Schedule:
        """The simulated schedule."""
        return self.program.graph.schedule

    @cached_property
    def ran(self) -> tuple[tuple[Ran, ...], ...]:
        """For each worker, its actions in order."""
        graph, (starts, ends, _) = self.program.graph, self.times
        return tuple(
            tuple(
                Ran(graph.actions[i], worker, starts[i], ends[i])
                for i in range(graph.first[worker], graph.first[worker + 1])
            )
            for worker in range(len(self.schedule.workers))
        )

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """All transfers between workers, by start."""
        lanes, actions = self.program.lanes, self.program.graph.actions
        made = (
            Transfer(lanes[lane], actions[producer].microbatch, start, end)
            for producer, _, lane, start, end in self.times[2]
        )
        return tuple(sorted(made, key=lambda transfer: transfer.start))

    @cached_property
    def updates(self) -> tuple[tuple[float, float], ...]:
        """When each worker begins and ends its updates; equal if the lists contain the updates."""
        graph, ends = self.program.graph, self.times[1]
        done = [ends[end - 1] if end else 0.0 for end in graph.first[1:]]
        for reduction in self.reductions:
            for worker in reduction.workers:
                done[worker] = max(done[worker], reduction.end)
        return tuple((begin, begin + self._update(worker)) for worker, begin in enumerate(done))

    def _update(self, worker: int) -> float:
        """Return the seconds of a worker's updates after its list."""
        if self.schedule.asynchronous:
            return 0.0
        return sum(self.costs.stages[stage].update for stage in self.schedule.held[worker])

    @property
    def finished(self) -> tuple[float, ...]:
        """When each worker has finished compute, collectives and updates."""
        return tuple(end for _, end in self.updates)

    @property
    def step(self) -> float:
        """Seconds from the first action to the end of the last worker."""
        return max(self.finished)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """Seconds of work of each worker: its actions, and its updates."""
        return tuple(
            sum(run.end - run.start for run in row) + self._update(worker)
            for worker, row in enumerate(self.ran)
        )

    @property
    def bubbles(self) -> tuple[float, ...]:
        """Seconds of the step in which each worker is idle."""
        return tuple(self.step - busy for busy in self.busy)

    @property
    def bubble_rates(self) -> tuple[float, ...]:
        """The fraction of the step in which each worker is idle."""
        return tuple(bubble / self.step if self.step else 0.0 for bubble in self.bubbles)

    @property
    def longest_span(self) -> float:
        """The longest time from a worker's first action to its own end.

        This is the step time if each worker starts its next step at once, without a common barrier.
        """
        return max(
            end - (row[0].start if row else 0.0)
            for end, row in zip(self.finished, self.ran, strict=True)
        )

    @cached_property
    def peaks(self) -> tuple[float, ...]:
        """Peak bytes of each worker."""
        return peaks(self.schedule, self.costs.stages)

    def memory(self, worker: int) -> tuple[tuple[float, float], ...]:
        """Return the memory of a worker over time as (second, bytes from then on)."""
        steps: list[tuple[float, float]] = []
        found = levels(self.schedule, self.costs.stages, worker)
        for run, (_, running, after) in zip(self.ran[worker], found, strict=True):
            steps += [(run.start, running), (run.end, after)]
        return tuple(steps)


def simulate(schedule: Schedule, costs: Costs) -> Simulated:
    """Simulate the lists; transfers are posted without blocking as soon as their data is available."""
    if len(costs.stages) != schedule.stages:
        raise ScheduleError(
            f"{schedule.name} has {schedule.stages} stages, but costs are given for "
            f"{len(costs.stages)}."
        )
    flat = program(schedule, tuple(traffic.edge for traffic in costs.edges))
    lanes = ways(flat.lanes, costs)
    engine = in_order if one_sender_each(flat, lanes) else by_events
    times = engine(flat, durations(costs), lanes, len(costs.network.links))
    return Simulated(costs, flat, times, reductions(flat, times[1], costs))


def step_seconds(schedule: Schedule, costs: Costs) -> float:
    """Return only the simulated step time."""
    return simulate(schedule, costs).step
