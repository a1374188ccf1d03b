"""A pipeline as one function: a graph is cut, stages are compiled, actions are written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from autopar.blocks import blocks
from autopar.capture.saved import saved
from autopar.errors import InputError, ScheduleError
from autopar.graph import Graph
from autopar.mesh import Mesh
from autopar.planning.posed import Settings
from autopar.plans.pipeline_plan import PipelinePlan, StagePlan, WorkerPlan, edges
from autopar.pricing.narrow import speaks
from autopar.pricing.parameters import Storage
from autopar.schedules import SCHEDULES, Schedule, build, lower
from autopar.schedules.kept import most_in_flight, most_versions
from autopar.schedules.stream import typical
from autopar.solve.care import FAIR
from autopar.split import Stages, split
from autopar.staging.alike import Asked, StageCompiler
from autopar.staging.cuts import balanced
from autopar.wording import argument, quoted
from cost_models.hardware import Hardware, digest

Shape = int | Sequence[int]


@dataclass(frozen=True)
class Wanted:
    """What a person forces of a pipeline.

    `workers` are the meshes that hold stages, in order; `stages` how many stages there are in all;
    `cuts` the operators that the stages after the first begin with, () where work decides.
    """

    workers: tuple[WorkerPlan, ...]
    stages: int
    schedule: str
    microbatches: int
    cuts: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        mesh: Mesh,
        stages: int | Sequence[Shape],
        schedule: str | None,
        microbatches: int | None,
        cuts: Sequence[str] = (),
        asynchronous: bool = False,
        samples: int | None = None,
    ) -> Wanted:
        """Read what a user passed as stages=, schedule=, microbatches=, cuts= and asynchronous=."""
        workers = worker_meshes(mesh, stages)
        name = schedule or "1f1b"
        if name not in SCHEDULES:
            raise InputError(f"No schedule is called {name!r}; there are {', '.join(SCHEDULES)}.")
        _permitted(name, asynchronous)
        named = SCHEDULES[name]
        usual = (named.per_worker or 2) * len(workers)
        count = len(cuts) + 1 if cuts else usual
        if named.per_worker and not named.asynchronous and count != usual:
            raise InputError(
                f"{len(cuts)} cuts make {count} stages; {name} on {len(workers)} workers has {usual}: "
                f"pass {usual - 1} cuts, or {argument('schedule', 'interleaved')} for several stages "
                "on each worker."
            )
        usually = named.parts(len(workers))
        made = cls(workers, count, name, microbatches or usually, tuple(cuts))
        return made if microbatches or not samples else made._dividing(samples, usually)

    @classmethod
    def like(cls, plan: PipelinePlan) -> Wanted:
        """What a plan decided."""
        schedule = plan.schedule
        return cls(plan.workers, schedule.stages, schedule.name, plan.microbatches, plan.cuts)

    def _dividing(self, samples: int, usually: int) -> Wanted:
        """In equal parts of a batch that the schedule can be made of: as many as usual, or near it."""
        divisors = (parts for parts in range(1, samples + 1) if samples % parts == 0)
        for parts in sorted(divisors, key=lambda n: (n > usually, abs(n - usually))):
            with suppress(ScheduleError):
                found = replace(self, microbatches=parts)
                found.build()
                return found
        return self

    def build(self) -> Schedule:
        """The schedule of a step, or of a stream of batches."""
        workers = len(self.workers)
        if not SCHEDULES[self.schedule].asynchronous:
            return build(self.schedule, workers, self.microbatches, self.stages)
        if self.stages != workers:
            raise InputError(
                f"{argument('schedule', self.schedule)} has one stage on each worker: {workers}, not "
                f"{self.stages}. Pass {workers - 1} cuts."
            )
        return typical(self.schedule, workers, self.microbatches)


def _permitted(name: str, asynchronous: bool) -> None:
    """Raise `InputError` unless a schedule that changes results was asked for as such, and only then."""
    if SCHEDULES[name].asynchronous and not asynchronous:
        raise InputError(
            f"{argument('schedule', name)} updates weights while microbatches are in flight, so its "
            f"steps are not those of one process. Pass {argument('asynchronous', True)} if that is what "
            f"you want, or take a synchronous schedule, such as {quoted('1f1b')}."
        )
    if asynchronous and not SCHEDULES[name].asynchronous:
        names = ", ".join(other for other, known in SCHEDULES.items() if known.asynchronous)
        raise InputError(
            f"{argument('asynchronous', True)} permits schedules whose updates do not wait: {names}. "
            f"{argument('schedule', name)} is none of them: leave {argument('asynchronous')} out, "
            "or pass one of these."
        )


def asked_of_pipelines(
    stages: int | Sequence[Shape] | Literal["auto"],
    schedule: str | None,
    microbatches: int | None,
    cuts: Sequence[str],
    asynchronous: bool = False,
    **others: Any,
) -> None:
    """Raise `InputError` for what pipelines cannot do, or what only they can."""
    _check_kinds(stages, microbatches, cuts)
    given = {"schedule": schedule, "microbatches": microbatches, "cuts": cuts}
    if stages == 1:
        for name, value in (given | {"asynchronous": asynchronous}).items():
            if value:
                raise InputError(
                    f"{argument(name, value)} is for pipelines: pass {argument('stages')} too. "
                    "(Without stages, train_step(microbatches=...) says how a step is divided.)"
                )
        return
    for name, usual in (("input", "global"), ("source", None), ("replan", True)):
        if others[name] != usual:
            raise InputError(
                f"{argument(name, others[name])} is not there for pipelines yet; leave it out, "
                "or stages."
            )


def _check_kinds(stages: object, microbatches: object, cuts: object) -> None:
    """What is neither a number nor a shape where one is wanted."""
    if not _is_stages(stages):
        raise InputError(
            f"{argument('stages', stages)}: pass how many ({argument('stages', 2)}), the mesh of each "
            f"({argument('stages', [1, (1, 3)])}), or {quoted('auto')}."
        )
    if microbatches is not None and (type(microbatches) is not int or microbatches < 1):
        raise InputError(
            f"{argument('microbatches', microbatches)}: pass a whole number, at least 1."
        )
    if isinstance(cuts, str):
        raise InputError(
            f"{argument('cuts', cuts)}: pass a list of operators' names, as [{cuts!r}]."
        )


def _is_stages(stages: object) -> bool:
    if stages == "auto" or type(stages) is int:
        return True
    if isinstance(stages, str) or not isinstance(stages, Sequence) or not stages:
        return False
    shapes = (shape if isinstance(shape, tuple | list) else (shape,) for shape in stages)
    return all(shape and all(type(size) is int for size in shape) for shape in shapes)


def worker_meshes(mesh: Mesh, stages: int | Sequence[Shape]) -> tuple[WorkerPlan, ...]:
    """The devices, consecutive ranks, as the meshes of workers.

    A number divides the mesh into equal parts along its outer axes; shapes are taken as they are.
    """
    if isinstance(stages, int):
        meshes = (_part(mesh, stages),) * stages
    else:
        shapes = [(shape,) if isinstance(shape, int) else tuple(shape) for shape in stages]
        meshes = tuple(_like(mesh, shape) for shape in shapes)
    devices = sum(each.world_size for each in meshes)
    if devices != mesh.world_size:
        raise InputError(
            f"{argument('stages', stages)} takes {devices} devices; the mesh ({mesh}) has "
            f"{mesh.world_size}."
        )
    found, first = [], 0
    for each in meshes:
        found.append(WorkerPlan(tuple(range(first, first + each.world_size)), each))
        first += each.world_size
    return tuple(found)


def _part(mesh: Mesh, count: int) -> Mesh:
    """One of `count` equal parts of a mesh: outer axes are divided first."""
    if count < 1 or mesh.world_size % count:
        raise InputError(
            f"{mesh.world_size} devices cannot be divided into {count} equal stages; pass their "
            f"meshes, such as {argument('stages', [1, 3])}."
        )
    sizes, left = [], count
    for axis in mesh:
        if left % axis.size == 0:
            left //= axis.size
            sizes.append(1)
        elif axis.size % left == 0:
            sizes.append(axis.size // left)
            left = 1
        else:
            return Mesh.of(mesh.world_size // count, names=mesh.names[:1])
    return Mesh.of(*sizes, names=mesh.names)


def _like(mesh: Mesh, shape: tuple[int, ...]) -> Mesh:
    names = mesh.names[-len(shape) :] if len(shape) <= len(mesh) else None
    return Mesh.of(*shape, names=names)


@dataclass(frozen=True)
class Staged:
    """A pipeline's plan with the graphs and sources of its stages."""

    plan: PipelinePlan
    stages: Stages
    sources: Mapping[tuple[int, int], str]
    """By stage and worker."""


def compile_pipeline(
    graph: Graph, mesh: Mesh, hardware: Hardware, settings: Settings, wanted: Wanted
) -> Staged:
    """The stages' plans under forced cuts, workers and schedule; `graph` is of one microbatch."""
    schedule = wanted.build()
    holders = schedule.holders
    cuts = wanted.cuts or balanced(
        graph, [wanted.workers[holder[0]].mesh.world_size for holder in holders]
    )
    stages = split(graph, cuts)
    return compile_stages(graph, stages, cuts, mesh, hardware, settings, wanted.workers, schedule)


def compile_stages(
    graph: Graph,
    stages: Stages,
    cuts: Sequence[str],
    mesh: Mesh,
    hardware: Hardware,
    settings: Settings,
    workers: tuple[WorkerPlan, ...],
    schedule: Schedule,
    storage: Mapping[tuple[int, str], Storage] | None = None,
) -> Staged:
    """Every stage compiled on every worker that holds it.

    `storage`: by worker and parameter, where parameters already are.
    """
    if schedule.asynchronous:
        _refuse_ties(stages, schedule)
    rests = dict(storage or {})
    known_hardware, hardware = hardware, on_full_hosts(hardware, mesh)
    kept = saved(graph, hardware.device.kind)
    compiler = StageCompiler(hardware, kept)
    plans: list[StagePlan] = []
    sources: dict[tuple[int, int], str] = {}

    def asked(stage: int, worker: int) -> Asked:
        part = stages.graphs[stage]
        own = _settings(settings, part, stage, worker, schedule, rests)
        return Asked(part, workers[worker].mesh, own)

    held = [(stage, worker) for stage, on in enumerate(schedule.holders) for worker in on]
    compiler.prepare([asked(*each) for each in held if not _waits(*each, stages, schedule)])
    for stage, worker in held:
        plan, sources[stage, worker] = compiler.compiled(asked(stage, worker))
        plans.append(StagePlan(stage, worker, plan))
        for p in plan.parameters:
            rests.setdefault((worker, p.name), Storage(p.stored, p.leaf, p.regather))
    lowered = lower(schedule, edges(stages))
    count = schedule.microbatches // schedule.batches
    plan_ = PipelinePlan(
        graph.name, graph.digest, mesh, tuple(cuts), count, str(lowered), workers, tuple(plans),
        hardware=known_hardware.device.name, hardware_digest=digest(known_hardware),
        versions=plans[0].plan.versions,
    )  # fmt: skip
    return Staged(plan_, stages, sources)


def _waits(stage: int, worker: int, stages: Stages, schedule: Schedule) -> bool:
    """Whether an earlier stage on the same worker says where a parameter of this one rests."""
    before = [s for s in range(stage) if worker in schedule.holders[s]]
    return any(stage in readers and not {*before}.isdisjoint(readers) for _, readers in stages.ties)


def _refuse_ties(stages: Stages, schedule: Schedule) -> None:
    """Raise `InputError` where stages share a weight that each of them would update at its own time."""
    for name, readers in stages.ties:
        nodes = (n for n in stages.graphs[readers[0]].leaves("parameter") if n.target == name)
        if any(node.outputs[0].differentiable for node in nodes):
            raise InputError(
                f"Parameter {name!r} is read by stages {', '.join(map(str, readers))}, which "
                f"{schedule.name} updates at different times, so it would come apart. Untie it (Hugging "
                "Face: tie_word_embeddings=False in the configuration), cut elsewhere, or take a "
                "synchronous schedule."
            )


def on_full_hosts(hardware: Hardware, mesh: Mesh) -> Hardware:
    """Devices and links as stages see them: other stages work on the same hosts."""
    return hardware.filled(min(mesh.world_size, hardware.devices_per_host))


def _settings(
    settings: Settings,
    part: Graph,
    stage: int,
    worker: int,
    schedule: Schedule,
    rests: Mapping[tuple[int, str], Storage],
) -> Settings:
    """What is asked of one stage: constraints that speak of it, parameters where they are.

    A worker's stages share its memory equally.
    """
    limit = settings.memory_limit
    own = [a for a in schedule.workers[worker] if a.stage == stage]
    return replace(
        settings,
        memory_limit=None if limit is None else limit / len(schedule.held[worker]),
        microbatches=sum(action.kind == "F" for action in own) // schedule.batches,
        in_flight=most_in_flight(own),
        versions=most_versions(own),
        constraints=tuple(c for c in settings.constraints if speaks(c, part)),
        storage={
            node.target: rests[worker, node.target]
            for node in part.leaves("parameter")
            if (worker, node.target) in rests
        },
        recompute=settings.recompute if blocks(part) else None,
        padding=(),
        pads_batch=False,
        care=FAIR,
    )
