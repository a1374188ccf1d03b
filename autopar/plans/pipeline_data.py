"""The fields of a pipeline plan, and properties derived from them alone."""

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
    """The devices of one worker: ranks in the row-major order of their mesh."""

    ranks: tuple[int, ...]
    mesh: MeshText


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The plan of one stage on one worker."""

    stage: int
    worker: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class StageFigures:
    """The predicted cost of one stage on one worker: seconds per microbatch and per step, peak bytes."""

    stage: int
    worker: int
    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    once_s: float
    in_flight: int
    nbytes: float
    reduced_s: float = 0.0
    """The part of `once_s` for exposed gradient reductions; the rest is for gathers and updates."""


@dataclass(frozen=True, slots=True)
class Passed:
    """Transfers per microbatch from a stage to a later one: seconds on the link between them.

    `back_s` is for the gradients; None if none are sent back.
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
    """An alternative way to train on the same devices, and its predicted step; None if nothing fits."""

    what: str
    step_s: float | None


@dataclass(frozen=True, slots=True)
class Copied:
    """Time per step in which a stage's worker waits because another worker holds some of its parameters.

    `seconds` are a part of the stage's `once_s`; `link` joins the two workers, as a profile names it.
    """

    stage: int
    worker: int
    other: int
    link: str
    seconds: float


@dataclass(frozen=True)
class Prediction:
    """A simulated step.  `bubbles` is the idle share of the step of each worker.

    For asynchronous schedules, `step_s` is the average time per batch of a simulated stream of batches.

    `bound_s` is a lower bound on the step of every plan in the planner's cost table, proven by the
    relaxation in `autopar/pipeline/planner/relaxation.py`.  The stages are afterwards solved separately,
    and may be faster than in the table.  It is None if the user fixed the pipeline, and for V schedules,
    which the relaxation does not cover.
    """

    step_s: float
    bubbles: tuple[float, ...]
    stages: tuple[StageFigures, ...]
    bound_s: float | None = None
    table_step_s: float | None = None
    """The planner's prediction for its choice: the step simulated with the table's figures."""
    compared: tuple[Compared, ...] = ()
    passed: tuple[Passed, ...] = ()
    joined: tuple[Joined, ...] = ()
    copied: tuple[Copied, ...] = ()
    peaks: tuple[float, ...] = ()
    """Peak bytes of a rank of each worker in the simulated step; () in old plans."""


@dataclass(frozen=True)
class PipelinePlanData:
    """The fields of a pipeline plan.

    `cuts` names the first operator of each stage after the first; `actions` is the schedule's text.
    The schedule is for one batch of `microbatches` microbatches, or for a stream of batches if it is
    asynchronous.
    """

    model: str
    graph_digest: str
    """Digest of the graph of one microbatch, before it is split."""
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
    """Bytes per device for all stages of a worker together; a single stage's limit may be lower."""
    schema: int = PIPELINE_SCHEMA

    @cached_property
    def schedule(self) -> Schedule:
        """The ordered actions of every worker, including transfers."""
        return Schedule.parse(self.actions)

    @property
    def times(self) -> Timing | None:
        """The measured operator times that were used for all stages; None: all times are modelled."""
        return self.stages[0].plan.times if self.stages else None

    @property
    def sources(self) -> str:
        """A summary of the sources of all stages' operator times."""
        every = (op for each in self.stages for op in each.plan.estimate.operators)
        return summed_up(every, self.times)

    @cached_property
    def of(self) -> dict[tuple[int, int], Plan]:
        """(stage, worker) -> plan."""
        return {(each.stage, each.worker): each.plan for each in self.stages}

    @cached_property
    def digest(self) -> str:
        """Twelve hex digits that identify all decisions."""
        plans = [(each.stage, each.worker, each.plan.digest) for each in self.stages]
        body = (self.graph_digest, self.cuts, self.microbatches, self.actions, self.workers, plans)
        return hashlib.sha256(repr(body).encode()).hexdigest()[:12]

    def worker_of(self, rank: int) -> int:
        """Return the worker that a rank belongs to."""
        return next(i for i, worker in enumerate(self.workers) if rank in worker.ranks)
