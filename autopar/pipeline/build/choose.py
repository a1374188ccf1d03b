"""Decides whether and how to pipeline a model: compares compiled pipelines with a plan without stages.

1. A sweep builds a cost table of all layer ranges (`stage_tables.py`).  From it the planner chooses
   stages, submeshes, number of microbatches and schedule jointly (`autopar/pipeline/planner`).
2. The plan without stages and microbatches is compiled first if it can be found quickly.  It wins at
   once if the lower bound of all plans in the table shows that none can be near it.
3. The chosen stages are compiled exactly, each within the memory that its schedule leaves.  If they do
   not fit because the table was too optimistic, the planner runs again with slightly less memory.
4. V schedules and interleaved pipelines whose step in the table is near the best are compiled too
   (`autopar/pipeline/planner/v_schedule.py`, `interleaved.py`).
5. A single stage that accumulates gradients over microbatches is compiled under the same condition.  A
   plan without stages that requires a search within the memory limit comes last, and is skipped if its
   bound is worse.  The plan with the shortest predicted step wins (`comparison.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from autopar.errors import InfeasibleError, InputError, OverLimitError
from autopar.ir.graph import Graph
from autopar.ir.mesh import Mesh
from autopar.ir.split import split
from autopar.pipeline.build.comparison import (
    Candidate,
    Chosen,
    NoneOfSeveralError,
    PlanComparison,
    worth_of,
)
from autopar.pipeline.build.forced import compile_forced
from autopar.pipeline.build.pipeline_spec import PipelineSpec
from autopar.pipeline.build.positions import forced, places
from autopar.pipeline.build.predict import predict
from autopar.pipeline.build.single_stage import SingleStagePlanner
from autopar.pipeline.build.sizes import Sizes
from autopar.pipeline.build.stage_tables import ModelStageTable, StageTableBuilder, counts
from autopar.pipeline.build.staged import Staged, compile_stages, on_full_hosts
from autopar.pipeline.planner import (
    FAMILIES,
    Family,
    InterleavedPlan,
    StagePlan,
    StageProblem,
    VSchedulePlan,
    interleaved,
    plan_stages,
)
from autopar.pipeline.planner import v_schedule as vee
from autopar.plans.pipeline_data import Prediction, WorkerPlan
from autopar.request.pipeline import Pipeline
from autopar.sharding.in_flight import refuse_no_blocks
from autopar.sharding.sharding_problem import Settings, device_memory
from autopar.solver import readable
from autopar.utils.messages import argument
from cost_models.hardware import Hardware

TIGHTER = (0.93, 0.85, 0.75)
"""Shares of the memory limit that the planner gets in turn if the compiled stages do not fit."""
HOPELESS = 1.5
"""Multiple of the memory limit: a plan without stages is tried only if the sweep's smallest is below."""
DEFAULT = ("1f1b", "gpipe", "zb-h1")
"""Schedule families considered, in addition to `SEVERAL`, if the user names no schedule."""
SEVERAL = (vee.NAME, interleaved.NAME)
"""Schedules with several stages on each worker, which the recurrences do not cover."""


@dataclass(frozen=True)
class Source:
    """A model that can be captured.

    capture   number of samples -> graph of a batch of that size
    parted    number of microbatches -> graph of one microbatch, as the step runs it; raises `InputError`
              if the loss does not allow several
    whole_because    why a step cannot be split into microbatches; None if it can
    """

    batch: int
    whole: Graph
    capture: Callable[[int], Graph]
    parted: Callable[[int], Graph]
    whole_because: str | None = None


def may_have(asked: Pipeline, name: str) -> bool:
    """Return whether a schedule of `SEVERAL` may be chosen; given cuts mean one stage per worker."""
    return asked.schedule in (None, name) and not asked.cuts


def families(asked: Pipeline) -> tuple[Family, ...]:
    """Return the schedule families with one stage per worker to choose from.

    Raises `InputError` if the requested schedule is not among them.
    """
    if asked.schedule is None or (asked.schedule in SEVERAL and not asked.cuts):
        return tuple(FAMILIES[name] for name in DEFAULT)
    if asked.schedule not in FAMILIES:
        names = ", ".join([*FAMILIES, *([] if asked.cuts else SEVERAL)])
        raise InputError(
            f"{argument('stages', 'auto')} takes the schedules {names}, not "
            f"{asked.schedule!r}. Pass one of them, or a number of stages: "
            f"{argument('stages', 2)}."
        )
    return (FAMILIES[asked.schedule],)


def _batch_counts(asked: Pipeline, batch: int) -> tuple[int, ...]:
    """Return the numbers of microbatches to choose from if the batch may be split.

    Raises `InputError` if the requested number does not divide the batch.
    """
    if asked.microbatches is None:
        return counts(batch)
    if batch % asked.microbatches:
        raise InputError(
            f"A batch of {batch} cannot be cut into {asked.microbatches} equal microbatches."
        )
    return (asked.microbatches,)


def choose(
    source: Source, mesh: Mesh, hardware: Hardware, settings: Settings, asked: Pipeline
) -> Chosen:
    """Return the best plan, with or without stages; raise `InfeasibleError` if nothing fits."""
    refuse_no_blocks(source.whole, settings)
    limit = settings.memory_limit
    if limit is None:
        limit = device_memory(mesh, hardware)
    limited = replace(settings, memory_limit=limit)
    sweep = _sweep(source, mesh, hardware, limited, asked)
    tabled = sweep.tabled(families(asked), _counts(source, sweep.sizes, asked))
    alone = None
    if asked.is_open and sweep.least_alone_nbytes() <= HOPELESS * limit:
        alone = SingleStagePlanner(source.whole, mesh, hardware, limited)
    rivals = PlanComparison(alone, worth_of(sweep.hardware))

    def planned(problem: StageProblem) -> list[Candidate]:
        fitting = partial(_fitting, source, mesh, hardware, limited, tabled, problem)
        return rivals.planned(tabled, problem, fitting)

    found: list[Candidate] = []
    if asked.schedule not in SEVERAL:
        found += planned(tabled.problem)
    made = partial(_with_several, source, tabled, mesh, hardware, limited)
    if may_have(asked, vee.NAME):
        found += rivals.vees(tabled, made)
    if may_have(asked, interleaved.NAME):
        below = min((each.step_s for each in found), default=math.inf)
        found += rivals.interleavings(tabled, made, below)
    rivals.enter(found)
    if asked.schedule not in SEVERAL and not asked.cuts:
        rivals.enter(planned(tabled.problem.of_one_stage()))
    if asked.is_open:
        rivals.enter_alone(mesh)
    try:
        return rivals.winner()
    except OverLimitError:
        raise
    except NoneOfSeveralError:
        name = asked.schedule or vee.NAME
        raise InfeasibleError(_no_several(name, mesh, tabled.problem, limit)) from None
    except InfeasibleError as error:
        raise InfeasibleError(
            f"Neither stages nor a plan without them fit {readable(limit)} per device. Use more "
            f"devices, a smaller batch, or a higher limit. The planner says: {error}."
            f"{_no_microbatches(source, asked)}"
        ) from None


def _no_several(name: str, mesh: Mesh, problem: StageProblem, limit: float) -> str:
    number = "two stages" if name == vee.NAME else "several stages"
    return (
        f"{argument('schedule', name)} makes {number} on each of several equal workers, "
        f"and no such pipeline was found: the mesh has {mesh.world_size} devices of "
        f"{readable(limit)}, and the model can be cut into {problem.positions - 1} pieces. Leave "
        f"{argument('schedule')} out, to try other schedules, or pass the number of workers: "
        f"{argument('stages', 2)}."
    )


def _no_microbatches(source: Source, asked: Pipeline) -> str:
    """Return why microbatches were not an option, or "" if they were or the user set their number."""
    if source.whole_because is None or asked.microbatches is not None:
        return ""
    return (
        " The batch was not divided into microbatches, which takes the most memory: "
        f"{source.whole_because}"
    )


def _sweep(
    source: Source, mesh: Mesh, hardware: Hardware, settings: Settings, asked: Pipeline
) -> StageTableBuilder:
    """Return the builder of the stage tables, over all positions where the model may be cut."""
    found = forced(asked.cuts) if asked.cuts else places(source.whole)
    assert settings.memory_limit is not None
    return StageTableBuilder(
        source.whole, found,
        Sizes(source.batch, source.whole, source.capture, hardware.device.kind), mesh,
        on_full_hosts(hardware, mesh), settings, settings.memory_limit,
    )  # fmt: skip


def _counts(source: Source, sizes: Sizes, asked: Pipeline) -> tuple[int, ...]:
    """Return the numbers of microbatches whose graph has the same operators as the whole batch's.

    Cuts and decisions refer to operators by name, so the names must agree.  Raises `InputError` if the
    requested number gives other operators.
    """
    many = _batch_counts(asked, source.batch)
    if source.whole_because is not None and asked.microbatches is None:
        return (1,)
    found = tuple(count for count in many if sizes.is_like_batch(source.batch // count))
    if not found and asked.microbatches is not None:
        raise InputError(
            f"With {source.batch} samples in {many[0]} microbatches, a microbatch runs other "
            "operators than the batch (an expand to one sample is omitted). Pass fewer "
            f"microbatches, or a number of stages: {argument('stages', 2)}."
        )
    return found or (1,)


def _fitting(
    source: Source,
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    tabled: ModelStageTable,
    problem: StageProblem,
    plan: StagePlan,
) -> Staged:
    """Compile the planner's choice; plan again with less memory if a stage turns out too large."""
    for share in TIGHTER:
        try:
            return compiled(source, tabled, plan, mesh, hardware, settings)
        except InfeasibleError as error:
            tighter = replace(problem, memory_nbytes=share * problem.memory_nbytes)
            try:
                plan = plan_stages(tighter)
            except InfeasibleError:
                raise error from None
    return compiled(source, tabled, plan, mesh, hardware, settings)


def compiled(
    source: Source,
    tabled: ModelStageTable,
    plan: StagePlan,
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
) -> Staged:
    """Return the planner's stages, each solved separately, with the predicted step."""
    graph = source.parted(plan.microbatches)
    cuts = cuts_of(tabled, plan)
    stages = split(graph, cuts)
    schedule = FAMILIES[plan.schedule].make(len(plan.stages), plan.microbatches)
    meshes = [tabled.decided[stage.way].mesh for stage in plan.stages]
    made = compile_stages(graph, stages, cuts, mesh, hardware, settings, _workers(meshes), schedule)
    prediction: Prediction = predict(made.plan, stages, hardware, settings)
    prediction = replace(prediction, bound_s=plan.bound_s, table_step_s=plan.step_s)
    return replace(made, plan=replace(made.plan, prediction=prediction))


def _with_several(
    source: Source,
    tabled: ModelStageTable,
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    found: VSchedulePlan | InterleavedPlan,
) -> Staged:
    """Compile a plan with several stages on each worker: each is solved separately, cuts are kept."""
    name = vee.NAME if isinstance(found, VSchedulePlan) else interleaved.NAME
    workers = _workers([tabled.decided[found.way].mesh] * found.workers)
    cuts = tuple(tabled.places.cut(border) for border in found.borders[1:-1])
    wanted = PipelineSpec(workers, len(cuts) + 1, name, found.microbatches, cuts)
    graph = source.parted(found.microbatches)
    made = compile_forced(graph, mesh, hardware, settings, wanted)
    assert made.plan.prediction is not None
    prediction = replace(made.plan.prediction, table_step_s=found.step_s)
    return replace(made, plan=replace(made.plan, prediction=prediction))


def cuts_of(tabled: ModelStageTable, plan: StagePlan) -> tuple[str, ...]:
    """Return the first operator of every stage after the first."""
    return tuple(tabled.places.cut(stage.start) for stage in plan.stages[1:])


def _workers(meshes: Sequence[Mesh]) -> tuple[WorkerPlan, ...]:
    """Assign consecutive ranks to workers with these meshes."""
    found, first = [], 0
    for mesh in meshes:
        found.append(WorkerPlan(tuple(range(first, first + mesh.world_size)), mesh))
        first += mesh.world_size
    return tuple(found)
