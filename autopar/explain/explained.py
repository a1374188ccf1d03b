"""Entry point of explanations: poses the problem of a model and its plan, and explains one target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from autopar.capture import ExampleInputs
from autopar.compile.automatic import source_of
from autopar.compile.compiler import Compiler
from autopar.compile.given import as_hardware, offered_inputs
from autopar.compile.planned import captured_for
from autopar.cost.timed import default_database, times_for
from autopar.errors import InputError, PlanError
from autopar.explain.explain import ROWS, explain
from autopar.explain.explanation import Explanation
from autopar.explain.replay import refuse_other
from autopar.explain.stage import explain_stage
from autopar.ir.graph import Graph
from autopar.plans.differences import differences
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.request.meta import without_weights
from autopar.request.options import Loss, Options, Precision
from autopar.sharding.asked import posed_for
from autopar.utils.messages import argument
from cost_models.hardware import Hardware, names


def explain_plan(
    plan: Plan | PipelinePlan,
    target: str,
    model: nn.Module,
    example_inputs: ExampleInputs | None = None,
    *,
    loss: Loss | None = None,
    hardware: str | Hardware | None = None,
    database: str | Path | None = None,
    stage: int | None = None,
    rows: int = ROWS,
) -> Explanation:
    """Explain the choice for `target` in a plan of this model, with its alternatives.

    See `autopar.explain.explain` for valid targets.  `model`, `example_inputs` and `loss` are those
    from which the plan was made; `hardware` and `database` are those that priced it, if they are not a
    shipped profile and the default database.  A pipeline's target is explained within one stage:
    `stage`, or the stage that contains the target.
    """
    profile = hardware_of(plan, hardware)
    times = None
    if plan.times is not None:
        times = times_for(Path(database or default_database()), profile, plan.mesh)
    if isinstance(plan, PipelinePlan):
        graph = microbatch_for(plan, model, example_inputs, loss)
        return explain_stage(plan, graph, profile, times, target, stage, rows)
    if stage is not None:
        raise InputError(f"This plan has no stages: leave {argument('stage')} out.")
    graph = captured_for(plan, model, example_inputs, loss)
    _refuse_stranger(differences(plan, graph))
    plan.check(graph)
    return explain(plan, posed_for(plan, graph, profile, times), target, rows)


def hardware_of(plan: Plan | PipelinePlan, given: str | Hardware | None) -> Hardware:
    """Return the profile that the user names, or else the one that priced the plan.

    Raises `InputError` if the latter is not a shipped profile: a calibrated profile may share the name
    of a shipped one but has other numbers.
    """
    profile = hardware_called(plan, given)
    if given is None:
        refuse_other(profile, plan.hardware, plan.hardware_digest)
    return profile


def hardware_called(plan: Plan | PipelinePlan, given: str | Hardware | None) -> Hardware:
    """Return the profile that the user names, or else the shipped one that the plan names.

    The numbers of the latter are not compared with the plan's.
    """
    if given is None and plan.hardware not in names():
        raise InputError(
            f"The plan was priced for {plan.hardware!r}, which is not among the profiles that come "
            f"with autopar ({', '.join(names())}). Pass the profile's file with "
            f"{argument('hardware')}."
        )
    return as_hardware(given or plan.hardware)


def microbatch_for(
    plan: PipelinePlan, model: nn.Module, inputs: ExampleInputs | None, loss: Loss | None
) -> Graph:
    """Return the graph of one microbatch; raise `PlanError` if the plan is of another model."""
    if not plan.stages:
        raise PlanError("The plan has no stages. Make a new one with `autopar plan`.")
    given: Any = offered_inputs(model) if inputs is None else inputs
    if not isinstance(given, Mapping):
        raise InputError("A pipeline's example inputs are a dict of keyword arguments.")
    precision = Precision.parse(plan.stages[0].plan.precision)
    bare = without_weights(model, precision.compute)
    options = Options(loss=loss, precision=precision)
    source = source_of(Compiler(bare, plan.mesh, as_hardware("cpu"), options), given)
    if plan.microbatches < 1 or source.batch % plan.microbatches:
        raise PlanError(
            f"The plan divides a batch into {plan.microbatches} equal microbatches, but "
            f"{source.batch} samples cannot be divided so. Pass the batch that it was planned "
            "for."
        )
    graph = source.parted(plan.microbatches)
    if graph.digest != plan.graph_digest:
        _refuse_stranger(
            (f"graph {plan.graph_digest}, not {graph.digest}: other sizes, batch, version or code",)
        )
    return graph


def _refuse_stranger(differs: tuple[str, ...]) -> None:
    if differs:
        raise PlanError(
            "The plan is not of this model and batch:\n- " + "\n- ".join(differs)
            + ".\nMake a new one with `autopar plan`."
        )  # fmt: skip
