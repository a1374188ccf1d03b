"""Matches a plan with the model and hardware that the user names, or reports the differences."""

from __future__ import annotations

from pathlib import Path

from autopar.cli.models import load
from autopar.cli.output import working
from autopar.compile.planned import captured_for
from autopar.cost.timed import default_database, times_for
from autopar.errors import InputError, PlanError
from autopar.ir.graph import Graph
from autopar.plans.differences import differences
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from cost_models.hardware import Hardware
from cost_models.measured import Database, Times


def graph_of(plan: Plan, model: str, batch: int | None, sequence: int | None) -> Graph:
    """Return the graph for which the plan was made; raise `PlanError` if the plan does not fit it."""
    graph = captured_like(plan, model, batch, sequence)
    plan.check(graph)
    return graph


def captured_like(plan: Plan, model: str, batch: int | None, sequence: int | None) -> Graph:
    """Capture the model as the plan was; raise `PlanError`, naming the differences, if they differ."""
    loaded = load(model, batch, sequence)
    with working("capturing the model"):
        graph = captured_for(plan, loaded.model, loaded.inputs, loaded.loss)
    differs = differences(plan, graph)
    if differs:
        raise PlanError(
            f"The plan (graph {plan.graph_digest}) does not belong to {model} (graph "
            f"{graph.digest}):\n- " + "\n- ".join(differs) + "\nMake a new one with `autopar plan`."
        )
    return graph


def times_of(plan: Plan | PipelinePlan, database: Path | None, profile: Hardware) -> Times | None:
    """Return the measured times that priced a plan; None if it was priced by the roofline.

    Raises `InputError` if a database is named for a plan without measured times.
    """
    if plan.times is None:
        if database is not None:
            Database(database).settings()
            raise InputError(
                "The plan uses modelled operator times, so --database does not apply to it: "
                "leave it out, or plan again with it."
            )
        return None
    return times_for(database or default_database(), profile, plan.mesh)
