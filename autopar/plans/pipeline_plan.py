"""The plan of a pipeline: where the graph is cut, who holds which stage, and who does what when.

Each stage on each of its workers has a `Plan` of its own, of the stage's graph on the worker's mesh.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from autopar.errors import PlanError
from autopar.pipeline.build.split import Stages
from autopar.pipeline.schedules import Edge, Schedule
from autopar.plans.changes import Difference, Outline, Outlined, difference, outline_of
from autopar.plans.pipeline_changes import pipeline_outline
from autopar.plans.pipeline_sound import check_layout, check_pipeline_sound
from autopar.plans.plan import Plan
from autopar.plans.texts import MeshText
from autopar.plans.timing import Timing, summed_up
from autopar.render.notebook import Shown
from autopar.utils.reading import first_fault, text_of

if TYPE_CHECKING:
    from autopar.explain.explanation import Explanation

PIPELINE_SCHEMA = 2


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Devices that hold stages together: ranks in the row-major order of the mesh they form."""

    ranks: tuple[int, ...]
    mesh: MeshText


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage on one worker."""

    stage: int
    worker: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class StageFigures:
    """What one stage on one worker should cost: seconds per microbatch and once a step, peak bytes."""

    stage: int
    worker: int
    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    once_s: float
    in_flight: int
    nbytes: float
    reduced_s: float = 0.0
    """Of `once_s`, the sum of gradients that nothing hides; the rest is for gathers and updates."""


@dataclass(frozen=True, slots=True)
class Passed:
    """What passes from a stage to a later one per microbatch: seconds on the link between them.

    `back_s` are those of the gradients; None where none come back.
    """

    source: int
    target: int
    there_s: float
    back_s: float | None


@dataclass(frozen=True, slots=True)
class Joined:
    """The link between two workers: ``intra_host`` or ``inter_host``, and its latency."""

    one: int
    two: int
    link: str
    latency_s: float


@dataclass(frozen=True, slots=True)
class Compared:
    """Another way to train on the same devices, and its predicted step; None where none fits."""

    what: str
    step_s: float | None


@dataclass(frozen=True, slots=True)
class Copied:
    """What a stage's worker waits for, once a step, as another worker holds some of its parameters.

    `seconds` are a part of the stage's `once_s`; `link` joins the two workers, as a profile names it.
    """

    stage: int
    worker: int
    other: int
    link: str
    seconds: float


@dataclass(frozen=True)
class Prediction:
    """A simulated step.  `bubbles`: by worker, the share of it in which there is nothing to do.

    Where updates do not wait, `step_s` is a batch's share of a simulated stream of them.

    `bound_s` is below the step of every plan of the table that the planner was given, by the
    relaxation of `autopar/pipeline/planner/relaxation.py`; the stages themselves are then solved one by one, and
    may be better than in the table.  None where a person chose, and of V's, which the relaxation does
    not know.
    """

    step_s: float
    bubbles: tuple[float, ...]
    stages: tuple[StageFigures, ...]
    bound_s: float | None = None
    table_step_s: float | None = None
    """What the planner believed of its choice: the simulated step with the table's figures."""
    compared: tuple[Compared, ...] = ()
    passed: tuple[Passed, ...] = ()
    joined: tuple[Joined, ...] = ()
    copied: tuple[Copied, ...] = ()


@dataclass(frozen=True)
class PipelinePlan(Shown):
    """`cuts` name the operators that stages begin with; `actions` is the schedule's text.

    It is of one batch of so many `microbatches`; where updates do not wait, of a stream of batches.
    """

    model: str
    graph_digest: str
    """Of the graph of one microbatch, before it is cut."""
    mesh: MeshText
    cuts: tuple[str, ...]
    microbatches: int
    actions: str
    workers: tuple[WorkerPlan, ...]
    stages: tuple[StagePlan, ...]
    prediction: Prediction | None = None
    hardware: str = ""
    hardware_digest: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    memory_limit: float | None = None
    """Bytes per device, of all stages on a worker together; a stage's own plan may be allowed less."""
    schema: int = PIPELINE_SCHEMA

    @cached_property
    def schedule(self) -> Schedule:
        """What every worker does, in order, transfers included."""
        return Schedule.parse(self.actions)

    @property
    def times(self) -> Timing | None:
        """The measured times that all stages were priced by; None: their operators are modelled."""
        return self.stages[0].plan.times if self.stages else None

    @property
    def sources(self) -> str:
        """Where the seconds of all stages' operators are from, summed up."""
        every = (op for each in self.stages for op in each.plan.estimate.operators)
        return summed_up(every, self.times)

    @cached_property
    def of(self) -> dict[tuple[int, int], Plan]:
        """(stage, worker) -> plan."""
        return {(each.stage, each.worker): each.plan for each in self.stages}

    @cached_property
    def digest(self) -> str:
        """Twelve hex digits of all decisions."""
        plans = [(each.stage, each.worker, each.plan.digest) for each in self.stages]
        body = (self.graph_digest, self.cuts, self.microbatches, self.actions, self.workers, plans)
        return hashlib.sha256(repr(body).encode()).hexdigest()[:12]

    def worker_of(self, rank: int) -> int:
        """The worker that a rank belongs to."""
        return next(i for i, worker in enumerate(self.workers) if rank in worker.ranks)

    @property
    def outline(self) -> Outline:
        """Names and texts, by which plans are compared."""
        return pipeline_outline(self)

    def diff(self, other: Outlined) -> Difference:
        """What `other`, a plan of the same model, decides differently, and what that costs."""
        return difference(self.outline, outline_of(other))

    def explain(
        self,
        target: str,
        model: Any,
        example_inputs: Any = None,
        *,
        loss: Any = None,
        hardware: Any = None,
        database: Any = None,
        stage: int | None = None,
        rows: int | None = None,
    ) -> Explanation:
        """Why `target` (a tensor, operator, parameter or module) is as it is, and what else it might be.

        `model`, `example_inputs` and `loss` are as `parallelize` was given them; `hardware` and
        `database` say what priced the plan, where its own names do not find it.  Every alternative that
        is solved for (`rows`) has the best plan with it, everything else decided anew, and how that
        differs.  It is explained
        within the plan of `stage`, or of the stage that has it.
        """
        from autopar.explain.explained import (
            explain_plan,  # reads plans: loaded when it is asked for
        )

        more = {} if rows is None else {"rows": rows}
        return explain_plan(
            self, target, model, example_inputs, loss=loss, hardware=hardware, database=database,
            stage=stage,
            **more,
        )  # fmt: skip

    def to_json(self) -> str:
        """The plan as text."""
        return _adapter().dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str, source: str = "plan") -> PipelinePlan:
        """Read a plan; raise `PlanError` naming `source` and the first thing that is wrong."""
        try:
            plan = _adapter().validate_json(text)
        except ValidationError as error:
            raise PlanError(
                f"{source} is not a pipeline's plan: {first_fault(error)}. "
                "Make a new one with `autopar plan --stages auto`."
            ) from None
        if plan.schema != PIPELINE_SCHEMA:
            raise PlanError(
                f"{source} has pipeline schema {plan.schema}; this autopar reads {PIPELINE_SCHEMA}. "
                "Make a new one with `autopar plan --stages auto`."
            )
        check_pipeline_sound(plan, source)
        return plan

    @classmethod
    def load(cls, path: str | Path) -> PipelinePlan:
        """Read a plan file."""
        return cls.from_json(text_of(path, "the plan"), str(path))

    def check(self, stages: Stages) -> None:
        """Raise `PlanError` or `ScheduleError` unless it fits the stages' graphs and itself."""
        check_layout(self)
        if self.schedule.stages != len(stages.graphs):
            raise PlanError(
                f"The plan has {self.schedule.stages} stages; the graph is cut into "
                f"{len(stages.graphs)}."
            )
        self.schedule.check(edges(stages))
        for each in self.stages:
            each.plan.check(stages.graphs[each.stage])


def edges(stages: Stages) -> tuple[Edge, ...]:
    """Which stages feed which, and whether gradients come back."""
    found: dict[tuple[int, int], bool] = {}
    for crossing in stages.crossings:
        pair = (crossing.source, crossing.target)
        found[pair] = found.get(pair, False) or crossing.returns
    return tuple(Edge(*pair, gradient) for pair, gradient in sorted(found.items()))


@cache
def _adapter() -> TypeAdapter[PipelinePlan]:
    """Made when it is first needed: that takes a while."""
    return TypeAdapter(PipelinePlan)
