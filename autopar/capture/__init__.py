"""Captures a model and example inputs as a `Graph`. This is the first stage of the flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from autopar.capture.frozen import lowered
from autopar.capture.inputs import ExampleInputs, bind
from autopar.capture.naming import name_tensors
from autopar.capture.numbers import with_numbers_of
from autopar.capture.passes import FIRST, LAST
from autopar.capture.repeats import Repeat, repeats
from autopar.capture.tracing import Demands, aliases, trace
from autopar.ir.graph import Graph


@dataclass(frozen=True)
class Traced:
    """A graph after the first clean-up passes.

    No-ops that may depend on the batch size are still in it, so batches of different sizes have the
    same nodes.
    """

    graph: Graph
    aliases: tuple[tuple[str, str], ...]
    returns: str


def capture(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    loss: Callable[..., Any] | None = None,
    train: bool = True,
    autocast: torch.dtype | None = None,
    keeps_modes: bool = False,
    needs_loss: bool | None = None,
) -> Graph:
    """Return the model's forward pass with its loss as a `Graph`; weights are not allocated or changed.

    With `train`, the modules run in their present modes, and the loss is the model's own or
    ``loss(output, **targets)``. Without it, they run in evaluation mode, no tensor carries a
    gradient, and a loss is optional. `keeps_modes` keeps the present modes without `train`, and
    `needs_loss` overrides whether a loss is required. `autocast` runs model and loss under
    ``torch.autocast`` of that dtype; the graph contains the casts.
    """
    return finished(
        traced(
            model, example_inputs, loss=loss, train=train, autocast=autocast,
            keeps_modes=keeps_modes, needs_loss=needs_loss,
        )
    )  # fmt: skip


def traced(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    loss: Callable[..., Any] | None = None,
    train: bool = True,
    autocast: torch.dtype | None = None,
    keeps_modes: bool = False,
    needs_loss: bool | None = None,
) -> Traced:
    """Run the first half of `capture`: trace, lower, and apply the `FIRST` passes."""
    call = bind(model, example_inputs, loss)
    demands = Demands(train, train or keeps_modes, train if needs_loss is None else needs_loss)
    graph, returns = lowered(model, loss, lambda: trace(model, call, loss, demands, autocast))
    for clean in FIRST:
        graph = clean(graph)
    return Traced(graph, aliases(model), returns)


def finished(traced: Traced, whole: Traced | None = None) -> Graph:
    """Run the second half of `capture`: apply the `LAST` passes and name the tensors.

    If `traced` is a part of the batch, it takes the numbers of the `whole` batch's graph.
    """
    graph = traced.graph if whole is None else with_numbers_of(whole.graph, traced.graph)
    for clean in LAST:
        graph = clean(graph)
    graph = replace(name_tensors(graph), aliases=traced.aliases, returns=traced.returns)
    graph.check()
    return graph


__all__ = ["ExampleInputs", "Repeat", "Traced", "capture", "finished", "repeats", "traced"]
