"""Explains a choice within one pipeline stage, with the stage's graph, devices and memory.

The cuts between stages and the schedule stay fixed.
"""

from __future__ import annotations

from dataclasses import replace

from autopar.errors import InputError
from autopar.explain.explain import ROWS, Watch, explain
from autopar.explain.explanation import Explanation
from autopar.explain.target import AbsentError, found
from autopar.ir.graph import Graph
from autopar.ir.split import split
from autopar.pipeline.build.stage_problems import StageProblem, stage_problems
from autopar.plans.focus import of_stages
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.utils.messages import argument
from cost_models.hardware import Hardware
from cost_models.measured import Times


def explain_stage(
    plan: PipelinePlan,
    graph: Graph,
    hardware: Hardware,
    times: Times | None,
    target: str,
    stage: int | None = None,
    rows: int = ROWS,
    watch: Watch = lambda every, total: every,
) -> Explanation:
    """Like `explain`, within the plan of the stage that contains the target.

    `graph` is that of one microbatch.  If several stages contain the target, `stage` selects one.
    """
    stages = split(graph, plan.cuts)
    plan.check(stages)
    count = len(stages.graphs)
    if stage is not None and not 0 <= stage < count:
        raise InputError(f"There is no stage {stage}: the plan has {count}, from 0.")
    first: dict[int, StageProblem] = {}
    for problem in stage_problems(plan, stages, hardware, times):
        first.setdefault(problem.stage.stage, problem)
    number = _holding(first, target, stage)
    problem = first[number]
    unit = "a step" if problem.settings.microbatches == 1 else "a microbatch"
    explained = explain(problem.stage.plan, problem.posed(), target, rows, watch, unit)
    return replace(explained, scope=_scope(problem, number, count))


def _holding(problems: dict[int, StageProblem], target: str, wanted: int | None) -> int:
    """Return the stage that contains the target: `wanted` if given, unless only other stages have it."""
    refused: dict[int, InputError] = {}
    for number, problem in problems.items():
        try:
            found(problem.stage.plan, problem.graph, target)
        except InputError as error:
            refused[number] = error
    having = [number for number in problems if number not in refused]
    if wanted is not None:
        if having and isinstance(refused.get(wanted), AbsentError):
            raise InputError(f"Stage {wanted} has no {target!r}: look in {of_stages(having)}.")
        return wanted
    if len(having) == 1:
        return having[0]
    if having:
        every = ", ".join(map(str, having))
        raise InputError(
            f"Stages {every} all have a {target!r}: say which with {argument('stage')}."
        )
    raise refused[min(refused)]


def _scope(problem: StageProblem, number: int, count: int) -> str:
    settings = problem.settings
    return (
        f"of stage {number} of {count} alone, on mesh {problem.stage.plan.mesh}: seconds of one of its "
        f"{settings.microbatches} microbatches, with a share of what is done once a step; memory with "
        f"{settings.in_flight} in flight. Cuts, schedule and the other stages stay as they are"
    )
