"""Captures the graph that belongs to an existing plan."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from autopar.capture import ExampleInputs
from autopar.compile.compiler import captured
from autopar.compile.given import offered_inputs
from autopar.errors import PaddingError
from autopar.ir.graph import Graph
from autopar.plans.plan import Plan
from autopar.request.batches import Batches
from autopar.request.meta import without_weights
from autopar.request.options import Loss, Options, Precision
from autopar.sharding.padding import padded


def captured_for(
    plan: Plan, model: nn.Module, example_inputs: ExampleInputs | None, loss: Loss | None
) -> Graph:
    """Capture the model's graph with the precision, outputs and padding of the plan.

    A graph that cannot be padded so is returned unpadded.
    """
    options = replace(
        Options(loss=loss),
        precision=Precision.parse(plan.precision),
        batches=Batches(outputs=plan.asked.outputs),
    )
    inputs = example_inputs if example_inputs is not None else offered_inputs(model)
    graph = captured(without_weights(model, options.precision.compute), inputs, options)
    try:
        return padded(graph, plan.padding)
    except PaddingError:
        return graph  # of another model: the caller finds that its digest differs
