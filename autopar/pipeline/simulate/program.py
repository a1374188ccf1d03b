"""Prepares a schedule for simulation: flat lists of actions, and lanes for transfers between workers.

A lane is one kind of transfer: activations or gradients of one edge, from one worker to another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from autopar.pipeline.schedules.dependencies import Dependencies, dependencies
from autopar.pipeline.schedules.schedule import Edge, Schedule
from autopar.pipeline.simulate.values import Costs


@dataclass(frozen=True, slots=True)
class Lane:
    """A kind of transfer; `backward`: of gradients instead of activations."""

    edge: int
    backward: bool
    sender: int
    receiver: int


@dataclass(frozen=True, eq=False)
class Program:
    """The part of a simulation that does not depend on costs.

    sends     for each action, pairs (action on another worker that waits for it, lane)
    seconds   for each action, its index in `durations`
    """

    graph: Dependencies
    lanes: tuple[Lane, ...]
    sends: tuple[tuple[tuple[int, int], ...], ...]
    seconds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransferCost:
    """Costs of a lane: the links that a transfer occupies, for how long, and the latency after that."""

    links: tuple[int, ...]
    occupied: float
    latency: float


@lru_cache(maxsize=32)
def program(schedule: Schedule, edges: tuple[Edge, ...]) -> Program:
    """Return the program of a schedule; the result is cached."""
    graph = dependencies(schedule, edges)
    numbers: dict[Lane, int] = {}
    sends: list[list[tuple[int, int]]] = [[] for _ in graph.actions]
    for user, needs in enumerate(graph.needs):
        for need in needs:
            sender, receiver = graph.worker[need.source], graph.worker[user]
            if need.edge is not None and sender != receiver:
                lane = Lane(need.edge, graph.actions[user].kind != "F", sender, receiver)
                number = numbers.setdefault(lane, len(numbers))
                sends[need.source].append((user, number))
    kinds = {"F": 0, "B": 1, "I": 2, "W": 3, "U": 4}
    seconds = tuple(kinds[action.kind] + 5 * action.stage for action in graph.actions)
    return Program(graph, tuple(numbers), tuple(map(tuple, sends)), seconds)


def durations(costs: Costs) -> list[float]:
    """Return the seconds of F, B, I, W, U of stage 0, then of stage 1, ...

    An update between microbatches includes its gradient reduction, which nothing hides.
    """
    return [
        seconds
        for stage in costs.stages
        for seconds in (
            stage.forward,
            stage.whole_backward,
            stage.input_gradient,
            stage.weight_gradient,
            stage.reduction + stage.update,
        )
    ]


def ways(lanes: tuple[Lane, ...], costs: Costs) -> list[TransferCost]:
    """Return the costs of each lane."""
    made = []
    for lane in lanes:
        traffic = costs.edges[lane.edge]
        nbytes = (traffic.gradient_nbytes or 0.0) if lane.backward else traffic.nbytes
        route = costs.network.routes.get((lane.sender, lane.receiver), ())
        links = [costs.network.links[number] for number in route]
        bandwidth = min((link.bandwidth for link in links), default=float("inf"))
        made.append(TransferCost(route, nbytes / bandwidth, sum(link.latency for link in links)))
    return made
