"""A plan beside the model and hardware that the user names, or what differs."""

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
    """The graph for which the plan was made, if the plan fits it; `PlanError` if not."""
    graph = captured_like(plan, model, batch, sequence)
    plan.check(graph)
    return graph


def captured_like(plan: Plan, model: str, batch: int | None, sequence: int | None) -> Graph:
    """The graph for which the plan was made; `PlanError` says what differs if it is another."""
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
    """The measured times that a plan was priced by; a database that is named for others is refused."""
    if plan.times is None:
        if database is not None:
            Database(database).settings()
            raise InputError(
                "The plan's operators are modelled, so no --database says what they take: leave it out, "
                "or plan again with it."
            )
        return None
    return times_for(database or default_database(), profile, plan.mesh)
