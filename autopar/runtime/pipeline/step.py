"""Executes one training step: this rank's action list.

Transfers do not block: receives are posted some computations ahead, and sends are awaited at the end.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Literal

import torch

from autopar.errors import InternalError
from autopar.pipeline.schedules.action import COMPUTE, RECEIVES, Action
from autopar.pipeline.schedules.collectives import completing
from autopar.runtime.named import named
from autopar.runtime.pipeline.channel import Arriving, Channel, Work
from autopar.runtime.pipeline.filling import Filling
from autopar.runtime.pipeline.links import Links
from autopar.runtime.pipeline.stage import Stage, Tensors
from autopar.runtime.random import LARGEST_SEED, STRIDE, seeded

AHEAD = 2
"""Number of computations by which receives are posted in advance."""
Arrival = tuple[Literal["F", "B"], int, int, int]
"""A transfer: activation (F) or gradient (B), receiving stage, sending stage, microbatch."""


class Step:
    """One step of the stages that this rank's worker holds.

    `inputs` returns the inputs of a microbatch, by key.  `losses` are the losses by microbatch, empty
    if the worker does not hold the stage that computes them.
    """

    def __init__(
        self,
        stages: Mapping[int, Stage],
        links: Links,
        inputs: Callable[[int], Mapping[str, torch.Tensor]],
        *,
        seed: int,
        scale: torch.Tensor | None = None,
        filling: Callable[[int], Filling | None] = lambda _: None,
        update: Callable[[Stage, Tensors], None] = lambda *_: None,
    ) -> None:
        self.stages, self._filling = stages, filling
        self._links, self._inputs = links, inputs
        self._seed, self._scale, self._update = seed, scale, update
        self._arriving: dict[Arrival, dict[str, Arriving]] = {}
        self._made: dict[Arrival, Tensors] = {}
        self._sends: deque[Work] = deque()
        self._last: frozenset[Action] = frozenset()
        """For each stage, the backward that completes its gradients."""
        self.losses: dict[int, torch.Tensor] = {}

    @property
    def loss(self) -> torch.Tensor | None:
        """The sum of this worker's microbatch losses; None if it has none."""
        return functools.reduce(torch.add, self.losses.values()) if self.losses else None

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return torch.device(self._links.device)

    def reduce(self, stage: int) -> None:
        """Start the pending reductions of the gradients that this stage completes."""
        if (filling := self._filling(stage)) is not None:
            filling.rest()

    def run(self, actions: Sequence[Action]) -> None:
        """Execute all actions in order, and wait for all sends."""
        # If weights are updated within the list, reductions wait for the update.
        if not any(action.kind == "U" for action in actions):
            self._last = frozenset(completing(actions))
        posted = 0
        for place, action in enumerate(actions):
            posted = self._post_ahead(actions, place, posted)
            with named(f"stage {action.stage}: {action}"):
                self._do(action)
            self._let_go()
        with named("wait for sends"):
            for work, _ in self._sends:
                work.wait()

    def _let_go(self) -> None:
        """Release the buffers of the oldest sends that are complete."""
        while self._sends and self._sends[0][0].is_completed():
            self._sends.popleft()

    def _post_ahead(self, actions: Sequence[Action], place: int, posted: int) -> int:
        computations = sum(action.kind in COMPUTE for action in actions[place:posted])
        while posted < len(actions) and computations < AHEAD:
            action = actions[posted]
            computations += action.kind in COMPUTE
            if action.kind in RECEIVES:
                self._post(action)
            posted += 1
        return posted

    def _do(self, action: Action) -> None:
        stage, microbatch = action.stage, action.microbatch
        if action.kind == "F":
            self._forward(stage, microbatch)
        elif action.kind in ("B", "I", "W"):
            self._backward(action)
        elif action.kind in ("SEND_F", "SEND_B"):
            self._send(action)
        elif action.kind == "REDUCE":
            self.reduce(stage)
        elif action.kind == "U":
            raise InternalError(
                f"{action}: only asynchronous schedules update weights during a step."
            )

    def compute(self, stage: int, microbatch: int, received: Tensors) -> Tensors:
        """Run a stage's forward for one microbatch, update its buffers and return the results."""
        here = self.stages[stage]
        place = self._seed + STRIDE * (microbatch * self._links.stages + stage + 1)
        seed = partial(seeded, place % LARGEST_SEED)
        results = here.forward(microbatch, self._inputs(microbatch), received, seed)
        self._update(here, results)
        return results

    def _forward(self, stage: int, microbatch: int) -> None:
        received: Tensors = {}
        for source in self._links.sources.get(stage, ()):
            arriving = self._arriving.pop(("F", stage, source, microbatch))
            with named(f"wait for stage {source}"):
                received |= {name: tensor.wait() for name, tensor in arriving.items()}
        results = self.compute(stage, microbatch, received)
        graph = self.stages[stage].program.graph
        if graph.loss is not None:
            self.losses[microbatch] = results[graph.loss].detach()
        for target in self._links.targets.get(stage, ()):
            ways = self._links.ways(stage, target, microbatch)
            made = {way.name: results[way.name].detach() for way in ways}
            self._hand_over(("F", target, stage, microbatch), made)

    def _backward(self, action: Action) -> None:
        """Run one or both halves of a backward; reductions that it completes start meanwhile."""
        stage, microbatch = action.stage, action.microbatch
        here = self.stages[stage]
        filling = self._filling(stage) if action in self._last else None
        with ExitStack() as stack:
            if filling is not None and not here.splits:
                stack.enter_context(filling.watching())
            if action.kind != "W":
                self._inputs_backward(stage, microbatch)
            if action.kind != "I":
                here.weights(microbatch, filling if here.splits else None)

    def _inputs_backward(self, stage: int, microbatch: int) -> None:
        here = self.stages[stage]
        graph = here.program.graph
        gradients: Tensors = {}
        if graph.loss is not None:
            loss = here.flights[microbatch].results[graph.loss]
            gradients[graph.loss] = torch.ones_like(loss) if self._scale is None else self._scale
        for target in self._links.targets.get(stage, ()):
            arriving = self._arriving.pop(("B", stage, target, microbatch), {})
            with named(f"wait for stage {target}"):
                arrived = {name: tensor.wait() for name, tensor in arriving.items()}
            for name, value in arrived.items():
                gradients[name] = gradients[name] + value if name in gradients else value
        made = here.backward(microbatch, gradients)
        for source in self._links.sources.get(stage, ()):
            ways = self._links.ways(source, stage, microbatch)
            own = {way.name: made[way.name] for way in ways if way.back is not None}
            if own:
                self._hand_over(("B", source, stage, microbatch), own)

    def _hand_over(self, arrival: Arrival, made: Tensors) -> None:
        """Pass tensors to a stage of this worker immediately; keep others until their send action."""
        self._made[arrival] = made
        if arrival[1] in self.stages and self._is_here(arrival):
            self._arriving[arrival] = self._posted(arrival)
            self._start(arrival)

    def _is_here(self, arrival: Arrival) -> bool:
        """Whether the same worker runs both stages."""
        return self._links.same_worker(arrival[1], arrival[2], arrival[3])

    def _send(self, action: Action) -> None:
        assert action.peer is not None
        kind: Literal["F", "B"] = "F" if action.kind == "SEND_F" else "B"
        self._start((kind, action.peer, action.stage, action.microbatch))

    def _start(self, arrival: Arrival) -> None:
        made = self._made.pop(arrival)
        for name, channel, tag in self._channels(arrival):
            self._sends += channel.send(made[name], tag)
            if arrival in self._arriving:
                channel.keep(made[name], self._arriving[arrival][name])

    def _post(self, action: Action) -> None:
        assert action.peer is not None
        kind: Literal["F", "B"] = "F" if action.kind == "RECV_F" else "B"
        arrival = (kind, action.stage, action.peer, action.microbatch)
        self._arriving[arrival] = self._posted(arrival)

    def _posted(self, arrival: Arrival) -> dict[str, Arriving]:
        return {name: channel.post(tag) for name, channel, tag in self._channels(arrival)}

    def _channels(self, arrival: Arrival) -> Iterator[tuple[str, Channel, int]]:
        kind, stage, peer, microbatch = arrival
        ends = (peer, stage) if kind == "F" else (stage, peer)
        for way in self._links.ways(*ends, microbatch):
            channel = way.forward if kind == "F" else way.back
            if channel is not None:
                yield way.name, channel, self._links.tag(way, microbatch, kind == "B")
