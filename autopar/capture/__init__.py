"""Capture: a model and example inputs -> Graph.  The first stage of the flow."""

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
    """A graph on its way: what changes nothing is still there, so every size of a batch has the same."""

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
    """The model's forward pass with its loss as a `Graph`; no weights are allocated or changed.

    With `train` the modules run in the mode they are in, and the loss is the model's own or
    ``loss(output, **targets)``.  Without, they run in evaluation mode, no tensor carries a
    gradient, and a loss is optional; unless it `keeps_modes`, or `needs_loss` says otherwise.
    `autocast` runs model and loss under ``torch.autocast`` of
    that dtype; the casts stand in the graph.
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
    """The first half of `capture`."""
    call = bind(model, example_inputs, loss)
    demands = Demands(train, train or keeps_modes, train if needs_loss is None else needs_loss)
    graph, returns = lowered(model, loss, lambda: trace(model, call, loss, demands, autocast))
    for clean in FIRST:
        graph = clean(graph)
    return Traced(graph, aliases(model), returns)


def finished(traced: Traced, whole: Traced | None = None) -> Graph:
    """The second half, perhaps of a part of a `whole` batch."""
    graph = traced.graph if whole is None else with_numbers_of(whole.graph, traced.graph)
    for clean in LAST:
        graph = clean(graph)
    graph = replace(name_tensors(graph), aliases=traced.aliases, returns=traced.returns)
    graph.check()
    return graph


__all__ = ["ExampleInputs", "Repeat", "Traced", "capture", "finished", "repeats", "traced"]
