"""Executes one stage on this rank: forward and backward per microbatch.

The backward may be split into the gradients of the inputs (I) and those of the weights (W).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

import torch

from autopar.runtime.deferred import Deferred, deferring
from autopar.runtime.leaves import Leaves
from autopar.runtime.module import Namespace
from autopar.runtime.pipeline.filling import Filling
from autopar.runtime.program import Program
from autopar.runtime.regather import regathering

Tensors = dict[str, torch.Tensor]


@dataclass(eq=False)
class Flight:
    """The state of one microbatch between its forward and its backward."""

    received: Tensors
    results: Tensors
    deferred: Deferred


@dataclass(eq=False)
class Stage:
    """One stage; `splits`: weight gradients are computed separately from the inputs' gradients.

    A compiled stage computes both at once, in the place of the inputs' gradients.
    """

    program: Program
    tree: Namespace
    leaves: Leaves
    splits: bool
    flights: dict[int, Flight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.splits &= not self.program.is_compiled

    @property
    def receives(self) -> tuple[str, ...]:
        """The names of the tensors that the stage receives from others."""
        return tuple(node.target for node in self.program.graph.leaves("received"))

    def forward(
        self,
        microbatch: int,
        inputs: Mapping[str, torch.Tensor],
        received: Tensors,
        seeded: Callable[[], AbstractContextManager[None]],
    ) -> Tensors:
        """Run the forward and return its results by name; with gradients on, keep the backward state."""
        graph, training = self.program.graph, torch.is_grad_enabled()
        for name, tensor in received.items():
            tensor.requires_grad_(training and graph.tensors[name].differentiable)
        arguments = [
            inputs[node.target] if node.op == "input" else received[node.target]
            for node in graph.arguments
        ]
        deferred = Deferred(frozenset(map(id, self.leaves.by_name.values())))
        with ExitStack() as stack:
            if training and self.program.regathers:
                stack.enter_context(regathering())
            if training and self.splits:
                stack.enter_context(deferring(deferred))
            if self.program.is_random:
                stack.enter_context(seeded())
            results = self.program.run(self.tree, arguments)
        if training:
            self.flights[microbatch] = Flight(received, results, deferred)
        return results

    def backward(self, microbatch: int, gradients: Mapping[str, torch.Tensor]) -> Tensors:
        """Compute the gradients of the received tensors from those of the results.

        Weight gradients are computed too unless they are deferred until `weights`.
        """
        flight = self.flights[microbatch]
        graph = self.program.graph
        roots = [
            (flight.results[name], gradient)
            for name, gradient in gradients.items()
            if flight.results[name].requires_grad
        ]
        if roots:
            outputs, values = zip(*roots, strict=True)
            # Both halves run the backward of an all-gather that several weights share.
            retain = self.splits and self.program.converts_together
            torch.autograd.backward(outputs, values, retain_graph=retain)
        flight.results = {}
        return {
            name: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            for name, tensor in flight.received.items()
            if graph.tensors[name].differentiable
        }

    def weights(self, microbatch: int, filling: Filling | None = None) -> None:
        """Compute deferred weight gradients; if they are the stage's last, report them to `filling`."""
        deferred = self.flights.pop(microbatch).deferred
        if filling is not None and deferred.late is not None:
            filling.all_but(deferred.late)
        deferred.run(None if filling is None else filling.arrived)
