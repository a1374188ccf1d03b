"""The objective: a plan of stages played by the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

from autopar.schedules.schedule import Schedule
from autopar.simulate.simulate import simulate
from autopar.simulate.values import Costs, Link, Network, StageCost, Traffic
from autopar.stages.families import Family
from autopar.stages.priced import Picked, Priced, once_of
from autopar.stages.table import StageTable

Objective = Callable[[Priced, Sequence[Picked]], float]
"""Seconds of a step; infinite where the plan does not fit."""


def costs_of(table: StageTable, stages: Sequence[Picked]) -> Costs:
    """Every stage on a worker of its own; neighbours are joined by a link in each direction."""
    made = []
    for start, end, number in stages:
        way, at = table.ways[number], (start, end)
        late = float(way.exposed_s[at])
        made.append(
            StageCost(
                forward=float(way.forward_s[at]),
                input_gradient=float(way.input_grad_s[at]),
                weight_gradient=float(way.weight_grad_s[at]),
                kept=float(way.kept_nbytes[at]),
                kept_for_weights=float(way.late_nbytes[at]),
                working=float(way.working_nbytes[at]),
                static=float(way.rest_nbytes[at]),
                reduction=float(once_of(way)[at]) - late,
                update=late,
            )
        )
    traffic = []
    for index, (_, end, number) in enumerate(stages[:-1]):
        cut = end, table.ways[number].exit, table.ways[stages[index + 1][2]].entry
        traffic.append(
            Traffic(index, index + 1, float(table.send_s[cut]), float(table.return_s[cut]))
        )
    # One byte is one second, so a transfer occupies its link for as long as the table says.
    links = (Link(table.latency_s, 1.0),) * (2 * len(traffic))
    there = {(index, index + 1): (2 * index,) for index in range(len(traffic))}
    back = {(index + 1, index): (2 * index + 1,) for index in range(len(traffic))}
    return Costs(tuple(made), tuple(traffic), Network(links, {**there, **back}))


@lru_cache(maxsize=64)
def schedule_of(family: Family, stages: int, microbatches: int) -> Schedule:
    """Made once; the simulator keeps its own form of it."""
    return family.make(stages, microbatches)


def simulated_step(priced: Priced, stages: Sequence[Picked]) -> float:
    """Seconds of a step; infinite where some worker keeps too many bytes."""
    schedule = schedule_of(priced.family, len(stages), priced.table.microbatches)
    done = simulate(schedule, costs_of(priced.table, stages))
    if max(done.peaks) > priced.problem.memory_nbytes:
        return math.inf
    return done.step
