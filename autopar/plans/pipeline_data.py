"""The fields of a pipeline's plan, and what follows from them alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from autopar.pipeline.schedules import Schedule
from autopar.plans.plan import Plan
from autopar.plans.texts import MeshText
from autopar.plans.timing import Timing, summed_up

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
    relaxation of `autopar/pipeline/planner/relaxation.py`; the stages themselves are then solved one by
    one, and may be better than in the table.  None where a person chose, and of V's, which the
    relaxation does not know.
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
class PipelinePlanData:
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
