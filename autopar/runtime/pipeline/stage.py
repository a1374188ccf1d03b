"""One stage on this rank: its forward and backward for each microbatch, in one half or two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

import torch

from autopar.runtime.context import Axes, on
from autopar.runtime.deferred import Deferred, deferring
from autopar.runtime.leaves import Leaves
from autopar.runtime.module import Namespace
from autopar.runtime.pipeline.filling import Filling
from autopar.runtime.program import Program
from autopar.runtime.regather import regathering

Tensors = dict[str, torch.Tensor]


@dataclass(eq=False)
class Flight:
    """What is kept of one microbatch between its forward and its backward."""

    received: Tensors
    results: Tensors
    deferred: Deferred


@dataclass(eq=False)
class Stage:
    """`splits`: weight gradients may be computed apart from the inputs' gradients."""

    program: Program
    axes: Axes
    tree: Namespace
    leaves: Leaves
    splits: bool
    flights: dict[int, Flight] = field(default_factory=dict)

    @property
    def receives(self) -> tuple[str, ...]:
        """Names of the tensors that come from other stages."""
        return tuple(node.target for node in self.program.graph.leaves("received"))

    def forward(
        self,
        microbatch: int,
        inputs: Mapping[str, torch.Tensor],
        received: Tensors,
        seeded: Callable[[], AbstractContextManager[None]],
    ) -> Tensors:
        """The stage's results, by the graph's names; with gradients on, kept for the backward."""
        graph, training = self.program.graph, torch.is_grad_enabled()
        for name, tensor in received.items():
            tensor.requires_grad_(training and graph.tensors[name].differentiable)
        arguments = [
            inputs[node.target] if node.op == "input" else received[node.target]
            for node in graph.arguments
        ]
        deferred = Deferred(frozenset(map(id, self.leaves.by_name.values())))
        with ExitStack() as stack:
            stack.enter_context(on(self.axes))
            if training and self.program.regathers:
                stack.enter_context(regathering())
            if training and self.splits:
                stack.enter_context(deferring(deferred))
            if self.program.is_random:
                stack.enter_context(seeded())
            results = self.program.run(self.tree, self.leaves.by_name, arguments)
        if training:
            self.flights[microbatch] = Flight(received, results, deferred)
        return results

    def backward(self, microbatch: int, gradients: Mapping[str, torch.Tensor]) -> Tensors:
        """The gradients of what was received, from those of the results; weights' as well, unless
        they are put off until `weights`."""
        flight = self.flights[microbatch]
        graph = self.program.graph
        roots = [
            (flight.results[name], gradient)
            for name, gradient in gradients.items()
            if flight.results[name].requires_grad
        ]
        if roots:
            outputs, values = zip(*roots, strict=True)
            # A gather that serves several weights is run backward by both halves.
            retain = self.splits and bool(self.program.groups)
            torch.autograd.backward(outputs, values, retain_graph=retain)
        flight.results = {}
        return {
            name: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            for name, tensor in flight.received.items()
            if graph.tensors[name].differentiable
        }

    def weights(self, microbatch: int, filling: Filling | None = None) -> None:
        """The second half of a backward; `filling` waits for the gradients, which are the last."""
        deferred = self.flights.pop(microbatch).deferred
        if filling is not None and deferred.late is not None:
            filling.all_but(deferred.late)
        deferred.run(None if filling is None else filling.arrived)
