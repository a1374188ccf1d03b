"""A plan beside the model that the user names: the model's graph, or what differs."""

from __future__ import annotations

from autopar.api import captured_for
from autopar.cli.models import load
from autopar.errors import PlanError
from autopar.graph import Graph
from autopar.plan import Plan
from autopar.show import differences


def graph_of(plan: Plan, model: str, batch: int | None, sequence: int | None) -> Graph:
    """The graph for which the plan was made; `PlanError` says what differs if it is another."""
    loaded = load(model, batch, sequence)
    graph = captured_for(plan, loaded.model, loaded.inputs, loaded.loss)
    differs = differences(plan, graph)
    if differs:
        raise PlanError(
            f"The plan (graph {plan.graph_digest}) does not belong to {model} (graph "
            f"{graph.digest}):\n- " + "\n- ".join(differs) + "\nMake a new one with `autopar plan`."
        )
    plan.check(graph)
    return graph
