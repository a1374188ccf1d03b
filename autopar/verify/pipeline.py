"""Certifies a pipeline plan: recomputes cuts, schedule, every stage's plan, memory and the step.

    graph, hardware    match the plan's
    cuts               are operators of the graph, in order
    schedule           passes `autopar/pipeline/schedules/check.py`, on these workers and edges
    stage s: ...       the certificate of the stage's own plan, for the stage's graph
    in flight          microbatches and bytes per stage follow from the schedule
    workers' memory    the sum over each worker's stages is within the limit
    prediction         the step, simulated again with the recomputed costs of the stages

`bound_s` of a prediction is not checked: it refers to the planner's table, which is not recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autopar.errors import AutoparError
from autopar.ir.graph import Graph
from autopar.ir.split import Stages, split
from autopar.pipeline.build.predict import predict_with_peaks
from autopar.pipeline.build.stage_problems import stage_problems
from autopar.plans.pipeline_data import Prediction, StagePlan
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.sharding.asked import settings_of
from autopar.verify import certify
from autopar.verify.check import Check, checked, differs, priced_for
from cost_models.hardware import Hardware
from cost_models.measured import Times


def certify_pipeline(
    plan: PipelinePlan,
    graph: Graph,
    hardware: Hardware,
    bound: bool = True,
    times: Times | None = None,
) -> tuple[Check, ...]:
    """Return all checks, up to the first step in which one fails; `graph` is that of one microbatch.

    Without `bound` no stage is solved again.  `times` are the measured times that priced the plan.
    """
    checks = [*_belongs(plan, graph, hardware)]
    if not all(check.ok for check in checks):
        return tuple(checks)
    try:
        stages = split(graph, plan.cuts)
    except AutoparError as error:
        return (*checks, Check("cuts", False, str(error)))
    checks.append(Check("cuts", True, f"{len(stages.graphs)} stages"))
    checks.append(_schedule(plan, stages))
    if not checks[-1].ok:
        return tuple(checks)
    for problem in stage_problems(plan, stages, hardware, times):
        each = problem.stage
        own = certify(each.plan, problem.posed(), bound, is_stage=True)
        checks += [replace(check, name=f"{_name(plan, each)}: {check.name}") for check in own]
    if all(check.ok for check in checks) and plan.prediction is not None:
        checks += _predicted(plan, plan.prediction, stages, hardware, times)
    return tuple(checks)


def _belongs(plan: PipelinePlan, graph: Graph, hardware: Hardware) -> Iterator[Check]:
    faults = [
        *differs("model", plan.model, graph.name),
        *differs("graph_digest", plan.graph_digest, graph.digest),
    ]
    yield checked("graph", f"{graph.name}, {graph.digest}", faults)
    yield priced_for(plan.hardware, plan.hardware_digest, hardware)


def _schedule(plan: PipelinePlan, stages: Stages) -> Check:
    """Check that the schedule runs to completion, and that each worker's stages have plans."""
    try:
        plan.check(stages)
        schedule = plan.schedule
    except AutoparError as error:
        return Check("schedule", False, str(error))
    faults = differs("microbatches", plan.microbatches, schedule.microbatches)
    actions = sum(map(len, schedule.workers))
    return checked("schedule", f"{schedule.name}, {actions} actions run to their end", faults)


def _predicted(
    plan: PipelinePlan,
    stated: Prediction,
    stages: Stages,
    hardware: Hardware,
    times: Times | None,
) -> Iterator[Check]:
    settings = settings_of(plan.stages[0].plan, times)
    found, peaks = predict_with_peaks(plan, stages, hardware, settings)
    faults: list[str] = []
    for each, mine, theirs in zip(plan.stages, stated.stages, found.stages, strict=False):
        for key in ("stage", "worker", "in_flight", "nbytes", "forward_s", "input_grad_s",
                    "weight_grad_s", "once_s"):  # fmt: skip
            what = f"{key} of {_name(plan, each)}"
            faults += differs(what, getattr(mine, key), getattr(theirs, key))
    faults += differs("the number of stages' figures", len(stated.stages), len(found.stages))
    waits = [sum(each.seconds for each in told.copied) for told in (stated, found)]
    faults += differs("the time that copies of parameters wait for each other", *waits)
    held = ", ".join(str(figures.in_flight) for figures in found.stages)
    most = max(figures.nbytes for figures in found.stages)
    yield checked("in flight", f"{held} microbatches, {most:.0f} bytes at most", faults)
    yield _memory(plan.memory_limit, peaks)
    faults = [*differs("step_s", stated.step_s, found.step_s)]
    for worker, (mine_, theirs_) in enumerate(zip(stated.bubbles, found.bubbles, strict=False)):
        faults += differs(f"the bubble of worker {worker}", mine_, theirs_)
    faults += differs("the number of bubbles", len(stated.bubbles), len(found.bubbles))
    yield checked("prediction", f"a step takes {found.step_s:g} s", faults)


def _memory(limit: float | None, peaks: Sequence[float]) -> Check:
    faults = [
        f"memory_limit is {limit} bytes in the plan; worker {worker} needs {peak:.0f}"
        for worker, peak in enumerate(peaks)
        if limit is not None and peak > limit
    ]
    of = "no limit was set" if limit is None else f"the limit is {limit:.0f}"
    return checked("workers' memory", f"{max(peaks):.0f} bytes at most; {of}", faults)


def _name(plan: PipelinePlan, each: StagePlan) -> str:
    several = len(plan.schedule.holders[each.stage]) > 1
    return f"stage {each.stage}" + (f" on worker {each.worker}" if several else "")
