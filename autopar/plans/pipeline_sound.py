"""Checks the internal consistency of a pipeline plan file, without a graph."""

from __future__ import annotations

from collections.abc import Iterator

from autopar.errors import PlanError, ScheduleError
from autopar.plans.figures import ROUNDING, figure_faults
from autopar.plans.pipeline_data import PipelinePlanData, Prediction
from autopar.plans.sound import check_sound
from autopar.utils.identifiers import is_identifier


def check_pipeline_sound(plan: PipelinePlanData, source: str) -> None:
    """Raise `PlanError` with `source` unless all parts are consistent and all figures are valid."""
    try:
        fault = next(_faults(plan), None)
    except ScheduleError as error:
        fault = str(error)
    if fault:
        raise PlanError(
            f"{source} is not a pipeline's plan: {fault.rstrip('.')}. "
            "Make a new one with `autopar plan --stages auto`."
        )
    for each in plan.stages:
        check_sound(each.plan, f"{source}: stage {each.stage} on worker {each.worker}")


def check_layout(plan: PipelinePlanData) -> None:
    """Raise `PlanError` unless devices, workers, schedule and the stages' plans are consistent."""
    fault = next(_layout_faults(plan), None)
    if fault:
        raise PlanError(fault)


def _faults(plan: PipelinePlanData) -> Iterator[str]:
    if not plan.stages:
        yield "The plan has no stages"
    if not is_identifier(plan.model):
        yield f"The model is called {plan.model!r}, which is not a class name"
    yield from _layout_faults(plan)
    if plan.prediction is not None:
        yield from figure_faults(plan.prediction, "prediction")
        yield from _prediction_faults(plan, plan.prediction)


def _layout_faults(plan: PipelinePlanData) -> Iterator[str]:
    """Yield layout faults; only the first is reliable, as later checks assume the earlier ones."""
    yield from _worker_faults(plan)
    schedule, stages = plan.schedule, len(plan.cuts) + 1
    if (schedule.stages, len(schedule.workers)) != (stages, len(plan.workers)):
        yield (
            f"The schedule has {schedule.stages} stages on {len(schedule.workers)} workers; the "
            f"plan has {stages} on {len(plan.workers)}."
        )
    if plan.microbatches < 1 or schedule.microbatches != plan.microbatches * schedule.batches:
        yield (
            f"The schedule has {schedule.microbatches} microbatches in {schedule.batches} "
            f"batches; the plan's batch has {plan.microbatches}."
        )
    yield from _stage_faults(plan)


def _worker_faults(plan: PipelinePlanData) -> Iterator[str]:
    ranks = sorted(rank for worker in plan.workers for rank in worker.ranks)
    if ranks != list(range(plan.mesh.world_size)):
        yield (
            f"The workers' ranks {ranks} are not the {plan.mesh.world_size} of the mesh "
            f"({plan.mesh}), each once."
        )
    for number, worker in enumerate(plan.workers):
        if worker.mesh.world_size != len(worker.ranks):
            yield (
                f"Worker {number} has {len(worker.ranks)} ranks on a mesh of "
                f"{worker.mesh.world_size} ({worker.mesh})."
            )


def _stage_faults(plan: PipelinePlanData) -> Iterator[str]:
    """Yield faults unless each stage has one plan per worker that holds it, on that worker's mesh."""
    held = places(plan)
    for stage, worker in held:
        if (stage, worker) not in plan.of:
            yield f"There is no plan of stage {stage} on worker {worker}."
    for each in plan.stages:
        where = f"stage {each.stage} on worker {each.worker}"
        if (each.stage, each.worker) not in held:
            yield f"There is a plan of {where}, which the schedule does not hold there."
            return
        mesh = plan.workers[each.worker].mesh
        if each.plan.mesh != mesh:
            yield (
                f"The plan of {where} is of the mesh ({each.plan.mesh}); the worker's is ({mesh})."
            )
    if len(plan.stages) != len(held):
        yield f"There are {len(plan.stages)} stages' plans for {len(held)} places."


def _prediction_faults(plan: PipelinePlanData, found: Prediction) -> Iterator[str]:
    """Yield references to stages or workers that do not exist, and shares above 1."""
    for number, bubble in enumerate(found.bubbles):
        if bubble > 1 + ROUNDING:
            yield f"prediction.bubbles.{number} is {bubble}, a share of the step"
    stages, workers = range(plan.schedule.stages), range(len(plan.workers))
    if len(found.bubbles) != len(workers):
        yield f"prediction.bubbles are of {len(found.bubbles)} workers; the plan has {len(workers)}"
    if found.peaks and len(found.peaks) != len(workers):
        yield f"prediction.peaks are of {len(found.peaks)} workers; the plan has {len(workers)}"
    predicted = sorted((each.stage, each.worker) for each in found.stages)
    if predicted != places(plan):
        yield f"prediction.stages are of (stage, worker) {predicted}, not {places(plan)}"
    for passed in found.passed:
        if passed.source not in stages or passed.target not in stages:
            yield f"prediction.passed is from stage {passed.source} to {passed.target}"
    for joined in found.joined:
        if joined.one not in workers or joined.two not in workers:
            yield f"prediction.joined is of workers {joined.one} and {joined.two}"
    for copied in found.copied:
        if (copied.stage, copied.worker) not in plan.of or copied.other not in workers:
            yield f"prediction.copied is of stage {copied.stage} on worker {copied.worker}"


def places(plan: PipelinePlanData) -> list[tuple[int, int]]:
    """Return (stage, worker) for every worker that holds a stage, in order."""
    holders = plan.schedule.holders
    return [(stage, worker) for stage, workers in enumerate(holders) for worker in workers]
