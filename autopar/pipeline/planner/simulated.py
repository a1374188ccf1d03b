"""The planner's default objective: the simulated step of a plan of stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from autopar.pipeline.planner.play import ChainCosts, lists_of, most_held, step_of
from autopar.pipeline.planner.priced import Picked, Priced
from autopar.pipeline.planner.table import StageOption, StageTable
from autopar.pipeline.simulate.values import Costs, Link, Network, StageCost, Traffic

Objective = Callable[[Priced, Sequence[Picked]], float]
"""Returns the seconds of a step; infinite if the plan does not fit."""


def costs_of(
    table: StageTable, stages: Sequence[Picked], holders: Sequence[int] | None = None
) -> Costs:
    """Return the simulator's costs of a plan, in which `holders` has the worker of each stage.

    None: each stage has its own worker.  Workers of neighbouring stages have a link in each direction.
    """
    made = []
    for start, end, number in stages:
        way, at = table.ways[number], (start, end)
        late = float(way.exposed_s[at])
        made.append(
            StageCost(
                forward=float(way.forward_s[at]),
                input_gradient=float(way.input_grad_s[at] + way.splitting_s[at]),
                weight_gradient=float(way.weight_grad_s[at]),
                backward=float(way.input_grad_s[at] + way.weight_grad_s[at]),
                kept=float(way.kept_nbytes[at]),
                kept_for_weights=float(way.late_nbytes[at]),
                working=float(way.working_nbytes[at]),
                static=float(way.rest_nbytes[at]),
                reduction=_not_hidden(way, at),
                update=late,
            )
        )
    traffic = []
    for index, (_, end, number) in enumerate(stages[:-1]):
        cut = end, table.ways[number].exit, table.ways[stages[index + 1][2]].entry
        traffic.append(
            Traffic(index, index + 1, float(table.send_s[cut]), float(table.return_s[cut]))
        )
    # At one byte per second, a transfer of n bytes occupies its link for the table's n seconds.
    held = range(len(stages)) if holders is None else holders
    pairs = {pair for one, two in pairwise(held) if one != two for pair in ((one, two), (two, one))}
    routes = {pair: (place,) for place, pair in enumerate(sorted(pairs))}
    links = (Link(table.latency_s, 1.0),) * len(routes)
    return Costs(tuple(made), tuple(traffic), Network(links, routes))


def simulated_step(priced: Priced, stages: Sequence[Picked]) -> float:
    """Return the simulated seconds of a step; infinite if some worker exceeds its memory."""
    lists = lists_of(priced.family, len(stages), priced.table.microbatches)
    costs = costs_of(priced.table, stages)
    for row, stage in zip(lists, costs.stages, strict=True):
        held = (f * stage.kept + late * stage.kept_for_weights for f, late in most_held(row))
        if stage.static + stage.working + max(held) > priced.problem.memory_nbytes:
            return math.inf
    traffic = costs.edges if len(stages) > 1 else ()
    return step_of(
        lists,
        ChainCosts(
            tuple(
                (s.forward, s.whole_backward, s.input_gradient, s.weight_gradient)
                for s in costs.stages
            ),
            tuple(edge.nbytes for edge in traffic),
            tuple(edge.gradient_nbytes or 0.0 for edge in traffic),
            priced.table.latency_s,
            tuple(s.reduction for s in costs.stages),
            tuple(s.update for s in costs.stages),
        ),
    )


def _not_hidden(way: StageOption, at: tuple[int, int]) -> float:
    """Return the seconds of the reduction that the last microbatch's backward does not hide."""
    hides = float(way.input_grad_s[at] + way.weight_grad_s[at])
    return max(0.0, float(way.hideable_s[at]) - hides)
