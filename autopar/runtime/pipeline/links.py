"""The channels for all tensors that cross between stages, on the workers that hold the stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import torch

from autopar.ir.placement import Sharding
from autopar.ir.result_layout import leaving
from autopar.ir.split import Crossing, Stages
from autopar.pipeline.schedules.action import RECEIVES, SENDS, Action
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.runtime.pipeline.built import Built
from autopar.runtime.pipeline.channel import Channel
from autopar.runtime.pipeline.directions import Directions
from autopar.runtime.pipeline.tiles import Layout


@dataclass(frozen=True, slots=True)
class Route:
    """The channel of one tensor from its producer worker to a consumer, and that of its gradient."""

    name: str
    number: int
    forward: Channel
    back: Channel | None
    """None if the tensor has no gradient."""


class Links:
    """The routes between stages, created on first use."""

    def __init__(self, plan: PipelinePlan, stages: Stages, directions: Directions) -> None:
        self._plan, self._stages, self._directions = plan, stages, directions
        self._ways: dict[tuple[int, int, int, int], tuple[Route, ...]] = {}

    @property
    def device(self) -> torch.device | str:
        """The device of the tensors that are transferred."""
        return self._directions.device

    def connect(self, worker: int) -> None:
        """Connect this rank with all ranks that it will exchange tensors with; all ranks call it."""
        actions = self._plan.schedule.workers[worker]
        ways = (way for each in actions for way in self._ways_of(each))
        channels = (channel for way in ways for channel in (way.forward, way.back) if channel)
        self._directions.connect(pair for channel in channels for pair in channel.pairs)

    def _ways_of(self, action: Action) -> tuple[Route, ...]:
        """Return the routes of a transfer; none for other actions."""
        if action.kind not in SENDS | RECEIVES:
            return ()
        assert action.peer is not None
        forth = action.kind in ("SEND_F", "RECV_B")
        ends = (action.stage, action.peer) if forth else (action.peer, action.stage)
        return self.ways(*ends, action.microbatch)

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self._stages.graphs)

    @cached_property
    def between(self) -> Mapping[tuple[int, int], tuple[int, ...]]:
        """The numbers of the crossings, by (source stage, target stage)."""
        found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for number, crossing in enumerate(self._stages.crossings):
            found[crossing.source, crossing.target].append(number)
        return {ends: tuple(numbers) for ends, numbers in found.items()}

    @cached_property
    def sources(self) -> Mapping[int, tuple[int, ...]]:
        """The stages from which each stage receives activations."""
        return _grouped((target, source) for source, target in sorted(self.between))

    @cached_property
    def targets(self) -> Mapping[int, tuple[int, ...]]:
        """The stages to which each stage sends activations."""
        return _grouped(sorted(self.between))

    def ways(self, source: int, target: int, microbatch: int) -> tuple[Route, ...]:
        """Return the routes of a microbatch's tensors from one stage to another."""
        holder = self._plan.schedule.worker_of
        ends = (holder[source, microbatch], holder[target, microbatch])
        key = (source, target, *ends)
        if key not in self._ways:
            self._ways[key] = tuple(
                self._way(number, *ends) for number in self.between[source, target]
            )
        return self._ways[key]

    def same_worker(self, stage: int, other: int, microbatch: int) -> bool:
        """Whether one worker runs both stages for a microbatch."""
        holder = self._plan.schedule.worker_of
        return holder[stage, microbatch] == holder[other, microbatch]

    def tag(self, way: Route, microbatch: int, is_gradient: bool) -> int:
        """Return a message tag that is unique between two ranks within one step."""
        return (2 * way.number + is_gradient) * self._plan.schedule.microbatches + microbatch

    def _way(self, number: int, giver: int, taker: int) -> Route:
        crossing = self._stages.crossings[number]
        tensor = self._stages.graphs[crossing.source].tensors[crossing.tensor]
        start = self._layout(giver, self._sent(crossing, giver))
        end = self._layout(taker, self._received(crossing, taker))
        dtype = getattr(torch, tensor.dtype)
        back = None
        if crossing.returns:
            back = Channel(tensor.shape, dtype, end, start, self._directions)
        return Route(
            tensor.name, number, Channel(tensor.shape, dtype, start, end, self._directions), back
        )

    def _layout(self, worker: int, form: Sharding) -> Layout:
        found = self._plan.workers[worker]
        return Layout(found.ranks, found.mesh, form)

    def _sent(self, crossing: Crossing, worker: int) -> Sharding:
        graph = self._stages.graphs[crossing.source]
        made = self._plan.of[crossing.source, worker].sharding(graph, crossing.tensor)
        return leaving(graph.tensors[crossing.tensor], graph, made)

    def _received(self, crossing: Crossing, worker: int) -> Sharding:
        graph = self._stages.graphs[crossing.target]
        return self._plan.of[crossing.target, worker].sharding(graph, crossing.tensor)


class LinksOf:
    """The links of each pipeline of a module; a pipeline's first use connects the ranks."""

    def __init__(self, directions: Directions) -> None:
        self._directions = directions
        self._known: WeakKeyDictionary[Built, Links] = WeakKeyDictionary()

    def __call__(self, built: Built) -> Links:
        """Return the links; all ranks call it."""
        if built not in self._known:
            self._known[built] = Links(built.plan, built.stages, self._directions)
            self._known[built].connect(built.worker)
        return self._known[built]


def _grouped(pairs: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return {key: tuple(values) for key, values in found.items()}
