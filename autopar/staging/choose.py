"""Whether to pipeline, and how: the planner's choice compiled stage by stage, against no stages.

1. The sweep makes a table of all ranges (`tabled.py`), the planner chooses stages, submeshes, number of
   microbatches and schedule together (`autopar/stages`).
2. The plan without stages and microbatches is compiled, where it is found soon.  Where no plan of the
   table comes near it, by the bound of all of them, it has won.
3. The chosen stages are compiled exactly, each within the memory that its schedule leaves.  Where the
   table promised too much, the planner is asked again with a little less memory.
4. Against it stands one stage that accumulates gradients over microbatches, as well.  A plan without
   stages whose memory has to be searched for comes last, unless its bound is worse.  The least
   predicted step wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from autopar.errors import InfeasibleError, InputError
from autopar.graph import Graph
from autopar.mesh import Mesh
from autopar.planning.posed import Compilation, Settings, device_memory
from autopar.plans.pipeline_plan import Compared, PipelinePlan, Prediction, WorkerPlan
from autopar.plans.record import View
from autopar.split import split
from autopar.stages import FAMILIES, Family, Planner, StagePlan, StageProblem, plan_stages
from autopar.staging.alone import Alone
from autopar.staging.positions import forced, places
from autopar.staging.predict import predict
from autopar.staging.sizes import Sizes
from autopar.staging.staged import Staged, compile_stages, on_full_hosts
from autopar.staging.tabled import Sweep, Tabled, counts
from cost_models.hardware import Hardware

TIGHTER = (0.93, 0.85, 0.75)
"""Shares of the memory that the planner is offered, one after the other, where stages do not fit."""
BEHIND = 1.25
"""Times the best step known: what its table puts further behind is not compiled."""
NEAR = 1.05
"""Times the best step known: where no plan of the table can be faster than that, none is sought.  Stages
that are solved by themselves may be a little better than their table."""
WORTH = 1.05
"""Stages must be predicted so many times as fast as none where the profile does not know how ranks wait
for each other, which they do with every message.  On two ranks of one machine, both forms being
predicted at 219 ms, stages took 220 ms alone and 255 to 290 in turn with other programs, none 207."""
HOPELESS = 1.5
"""Times the limit: where the sweep's smallest plan is larger, none without stages is sought."""
DEFAULT = ("1f1b", "gpipe", "zb-h1")
"""Families that are looked at where no schedule is asked for."""


@dataclass(frozen=True)
class Source:
    """A model that can be captured.

    capture   samples -> the graph of so many
    parted    microbatches -> the graph of one of them, as the step runs it; raises `InputError` where
              the loss does not allow several
    """

    batch: int
    whole: Graph
    capture: Callable[[int], Graph]
    parted: Callable[[int], Graph]
    is_separable: bool = True
    """Whether a step may be made of microbatches."""


@dataclass(frozen=True)
class Wishes:
    """What a person forces of an automatic choice; None and () leave it open."""

    schedule: str | None = None
    microbatches: int | None = None
    cuts: tuple[str, ...] = ()

    @property
    def families(self) -> tuple[Family, ...]:
        """The schedules to choose from."""
        names = DEFAULT if self.schedule is None else (self.schedule,)
        unknown = [name for name in names if name not in FAMILIES]
        if unknown:
            raise InputError(
                f"stages='auto' chooses among the schedules {', '.join(FAMILIES)}, not "
                f"{unknown[0]!r}. Pass one of them, or say how many stages there are: stages=2."
            )
        return tuple(FAMILIES[name] for name in names)

    def counts(self, batch: int) -> tuple[int, ...]:
        """The numbers of microbatches to choose from, where there may be several."""
        if self.microbatches is None:
            return counts(batch)
        if self.microbatches < 1 or batch % self.microbatches:
            raise InputError(
                f"A batch of {batch} cannot be cut into {self.microbatches} equal microbatches."
            )
        return (self.microbatches,)


@dataclass(frozen=True)
class Chosen:
    """The winner: a pipeline (perhaps of one stage), or a plan without microbatches."""

    staged: Staged | None
    plain: Compilation | None
    compared: tuple[Compared, ...]


def choose(
    source: Source, mesh: Mesh, hardware: Hardware, settings: Settings, wishes: Wishes
) -> Chosen:
    """The best of all; raise `InfeasibleError` where nothing fits."""
    limit = settings.memory_limit
    if limit is None:
        limit = device_memory(mesh, hardware)
    limited = replace(settings, memory_limit=limit)
    sweep = _sweep(source, mesh, hardware, limited, wishes)
    problems = _problems(source, sweep, wishes)
    alone = None
    if _may_be_plain(wishes) and sweep.least_alone_nbytes() <= HOPELESS * limit:
        alone = Alone(source.whole, mesh, hardware, limited)
    fitting = partial(_fitting, source, mesh, hardware, limited)
    rivals = _Rivals(fitting, alone, 1.0 if _knows_waiting(sweep.hardware) else WORTH)
    for tabled, problem in problems:
        rivals.enter(tabled, problem)
    if _may_be_plain(wishes):
        rivals.enter_alone(mesh)
    return rivals.winner()


class _Rivals:
    """Pipelines that were compiled, and what all that was compared would take."""

    def __init__(
        self,
        fitting: Callable[[Tabled, StageProblem, StagePlan], Staged],
        alone: Alone | None,
        worth: float,
    ) -> None:
        """`alone`: without stages, where that may fit; stages must be `worth` times as fast."""
        self._fitting, self._alone, self._worth = fitting, alone, worth
        self._plain = alone.soon() if alone else None
        self._refused: list[InfeasibleError] = []
        self._best: Staged | None = None
        self._entered: set[object] = set()
        self.compared: list[Compared] = []

    def _to_beat(self, stages: int | None) -> float:
        """The step that a plan of so many stages at most (None: any number) has to undercut."""
        plain = math.inf if self._plain is None else self._plain.plan.estimate.step_s
        plain /= 1.0 if stages == 1 else self._worth
        return plain if self._best is None else min(plain, _step(self._best))

    def enter(self, tabled: Tabled, problem: StageProblem) -> None:
        """Compile the planner's answer, unless its table leaves it no hope."""
        try:
            to_beat = self._to_beat(problem.most_stages)
            near = NEAR * to_beat
            planner = Planner(problem)
            if near < math.inf and planner.is_hopeless(near):
                self.compared.append(Compared(_bounded(problem), near))
                return
            plan = planner.plan()
            if plan.step_s > BEHIND * to_beat:
                self.compared.append(Compared(_planned(tabled, plan), plan.step_s))
                return
            if (same := (plan.schedule, plan.microbatches, plan.stages)) in self._entered:
                return
            self._entered.add(same)
            staged = self._fitting(tabled, problem, plan)
        except InfeasibleError as error:
            self._refused.append(error)
            return
        self.compared.append(Compared(_named(staged.plan), _step(staged)))
        if self._best is None or _step(staged) < _step(self._best):
            self._best = staged

    def enter_alone(self, mesh: Mesh) -> None:
        """Seek the plan without stages after all, unless its bound leaves it no hope."""
        name = f"no stages on {mesh}"
        if self._plain is None and self._alone is not None:
            self._plain = self._alone.after_all(self._worth * self._to_beat(1))
            if self._plain is None and self._best is not None:
                name += ", near the best"
        step = None if self._plain is None else self._plain.plan.estimate.step_s
        self.compared.append(Compared(name, step))

    def winner(self) -> Chosen:
        """The better one of the best pipeline and a plan without."""
        compared, plain = tuple(self.compared), self._plain
        if self._best is None and plain is None:
            raise self._refused[0]
        if self._best is None or (plain and self._is_as_good(plain, self._best)):
            assert plain is not None
            views = tuple(
                View(self._passed_over(each, plain), each.step_s) for each in compared[:-1]
            )
            return Chosen(None, replace(plain, plan=replace(plain.plan, views=views)), compared)
        assert self._best.plan.prediction is not None
        prediction = replace(self._best.plan.prediction, compared=compared)
        plan = replace(self._best.plan, prediction=prediction)
        return Chosen(replace(self._best, plan=plan), None, compared)

    def _is_as_good(self, plain: Compilation, staged: Staged) -> bool:
        """Whether stages are not worth it."""
        worth = self._worth if staged.plan.schedule.stages > 1 else 1.0
        return plain.plan.estimate.step_s <= worth * _step(staged)

    def _passed_over(self, other: Compared, plain: Compilation) -> str:
        """What was compared; where it is faster than the plan without, why it lost."""
        if other.step_s is None or other.step_s >= plain.plan.estimate.step_s:
            return other.what
        return f"{other.what} (stages have to be {self._worth} times as fast as none)"


def _knows_waiting(hardware: Hardware) -> bool:
    """Whether a profile, as the ranks of full hosts see it, was calibrated for it."""
    return hardware.device.behind > 0 or hardware.device.late_s > 0


def _may_be_plain(wishes: Wishes) -> bool:
    return wishes == Wishes()


def _sweep(
    source: Source, mesh: Mesh, hardware: Hardware, settings: Settings, wishes: Wishes
) -> Sweep:
    """Of the places that may be cut."""
    found = forced(wishes.cuts) if wishes.cuts else places(source.whole)
    assert settings.memory_limit is not None
    return Sweep(
        source.whole, found,
        Sizes(source.batch, source.whole, source.capture, hardware.device.kind), mesh,
        on_full_hosts(hardware, mesh), settings, settings.memory_limit,
    )  # fmt: skip


def _problems(
    source: Source, sweep: Sweep, wishes: Wishes
) -> tuple[tuple[Tabled, StageProblem], ...]:
    """What the planner is asked: any stages, and one stage."""
    tabled = sweep.tabled(wishes.families, _counts(source, sweep.sizes, wishes))
    if wishes.cuts:
        return ((tabled, tabled.problem),)
    single = replace(tabled.problem, most_stages=1, families=tabled.problem.families[:1])
    return (tabled, tabled.problem), (tabled, single)


def _counts(source: Source, sizes: Sizes, wishes: Wishes) -> tuple[int, ...]:
    """Numbers of microbatches that run the operators of the batch; cuts and decisions name these."""
    many = wishes.counts(source.batch)
    if not source.is_separable and wishes.microbatches is None:
        return (1,)
    found = tuple(count for count in many if sizes.is_like_batch(source.batch // count))
    if not found and wishes.microbatches is not None:
        raise InputError(
            f"Of {source.batch} samples in {many[0]} microbatches, a microbatch runs other operators "
            "than the batch (an expand to one sample is none). Ask for fewer microbatches, or say "
            "how many stages there are: stages=2."
        )
    return found or (1,)


def _fitting(
    source: Source,
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    tabled: Tabled,
    problem: StageProblem,
    plan: StagePlan,
) -> Staged:
    """The planner's choice, compiled; with less memory where a stage turns out too large."""
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
    tabled: Tabled,
    plan: StagePlan,
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
) -> Staged:
    """The planner's stages, each solved by itself, with the predicted step."""
    graph = source.parted(plan.microbatches)
    cuts = cuts_of(tabled, plan)
    stages = split(graph, cuts)
    schedule = FAMILIES[plan.schedule].make(len(plan.stages), plan.microbatches)
    meshes = [tabled.decided[stage.way].mesh for stage in plan.stages]
    made = compile_stages(graph, stages, cuts, mesh, hardware, settings, _workers(meshes), schedule)
    prediction: Prediction = predict(made.plan, stages, hardware, settings)
    prediction = replace(prediction, bound_s=plan.bound_s, table_step_s=plan.step_s)
    return replace(made, plan=replace(made.plan, prediction=prediction))


def cuts_of(tabled: Tabled, plan: StagePlan) -> tuple[str, ...]:
    """The operators that stages after the first begin with."""
    return tuple(tabled.places.cut(stage.start) for stage in plan.stages[1:])


def _workers(meshes: Sequence[Mesh]) -> tuple[WorkerPlan, ...]:
    """Consecutive ranks."""
    found, first = [], 0
    for mesh in meshes:
        found.append(WorkerPlan(tuple(range(first, first + mesh.world_size)), mesh))
        first += mesh.world_size
    return tuple(found)


def _step(staged: Staged) -> float:
    assert staged.plan.prediction is not None
    return staged.plan.prediction.step_s


def _named(plan: PipelinePlan) -> str:
    return _words(plan.schedule.name, plan.microbatches, [worker.mesh for worker in plan.workers])


def _bounded(problem: StageProblem) -> str:
    stages = "one stage in microbatches" if problem.most_stages == 1 else "stages"
    return f"{stages}, at least (by the bound of all plans of the table)"


def _planned(tabled: Tabled, plan: StagePlan) -> str:
    meshes = [tabled.decided[stage.way].mesh for stage in plan.stages]
    return f"{_words(plan.schedule, plan.microbatches, meshes)}, by its table"


def _words(schedule: str, microbatches: int, meshes: Iterable[Mesh]) -> str:
    sizes = "+".join("x".join(map(str, mesh.sizes)) for mesh in meshes)
    return f"{schedule} of {microbatches} microbatches on {sizes}"
