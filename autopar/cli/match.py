"""A plan beside the model and hardware that the user names, or what differs."""

from __future__ import annotations

from autopar.api import captured_for
from autopar.cli.models import load
from autopar.errors import InputError, PlanError
from autopar.given import as_hardware
from autopar.graph import Graph
from autopar.pipeline_plan import PipelinePlan
from autopar.plan import Plan
from autopar.show import differences
from cost_models.hardware import Hardware, names


def graph_of(plan: Plan, model: str, batch: int | None, sequence: int | None) -> Graph:
    """The graph for which the plan was made, if the plan fits it; `PlanError` if not."""
    graph = captured_like(plan, model, batch, sequence)
    plan.check(graph)
    return graph


def captured_like(plan: Plan, model: str, batch: int | None, sequence: int | None) -> Graph:
    """The graph for which the plan was made; `PlanError` says what differs if it is another."""
    loaded = load(model, batch, sequence)
    graph = captured_for(plan, loaded.model, loaded.inputs, loaded.loss)
    differs = differences(plan, graph)
    if differs:
        raise PlanError(
            f"The plan (graph {plan.graph_digest}) does not belong to {model} (graph "
            f"{graph.digest}):\n- " + "\n- ".join(differs) + "\nMake a new one with `autopar plan`."
        )
    return graph


def hardware_of(plan: Plan | PipelinePlan, given: str | None) -> Hardware:
    """The profile that the user names, or the one of the plan's name."""
    if given is None and plan.hardware not in names():
        raise InputError(
            f"The plan was priced for {plan.hardware!r}, which is not among the profiles that come "
            f"with autopar ({', '.join(names())}). Pass the profile's file with --hardware."
        )
    return as_hardware(given or plan.hardware)
