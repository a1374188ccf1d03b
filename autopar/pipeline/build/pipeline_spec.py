"""The user-specified parts of a pipeline: workers' meshes, schedule, microbatches, cuts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from autopar.errors import InputError, ScheduleError
from autopar.ir.mesh import Mesh
from autopar.pipeline.schedules import SCHEDULES, Schedule, build
from autopar.pipeline.schedules.stream import typical
from autopar.plans.pipeline_data import WorkerPlan
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.request.layers import Layers
from autopar.request.pipeline import Pipeline, Shape
from autopar.utils.messages import argument, quoted


@dataclass(frozen=True)
class PipelineSpec:
    """The user-specified parts of a pipeline.

    `workers` are the meshes that hold stages, in order; `stages` is the total number of stages; `cuts`
    are the first operators of the stages after the first.  `layers` are in place of cuts; without both,
    stages are balanced by work.
    """

    workers: tuple[WorkerPlan, ...]
    stages: int
    schedule: str
    microbatches: int
    cuts: tuple[str, ...] = ()
    layers: Layers | None = None

    @classmethod
    def of(
        cls,
        mesh: Mesh,
        asked: Pipeline,
        samples: int | None = None,
    ) -> PipelineSpec:
        """Return the spec for a request on this mesh.

        The requested stages are a number or meshes.  `samples` is the batch size.
        """
        assert asked.stages != "auto"
        workers, name = worker_meshes(mesh, asked.stages), asked.schedule or "1f1b"
        named = SCHEDULES.named(name)
        _permitted(name, asked.asynchronous)
        count, usually = _stages(asked, name, len(workers)), named.parts(len(workers))
        layers = None if asked.layers is None else Layers.of(asked.layers)
        made = cls(workers, count, name, asked.microbatches or usually, asked.cuts, layers)
        return made if asked.microbatches or not samples else made._dividing(samples, usually)

    @classmethod
    def like(cls, plan: PipelinePlan) -> PipelineSpec:
        """Return the spec of an existing plan."""
        schedule = plan.schedule
        return cls(plan.workers, schedule.stages, schedule.name, plan.microbatches, plan.cuts)

    def _dividing(self, samples: int, usually: int) -> PipelineSpec:
        """Return the spec with a number of microbatches that divides the batch and fits the schedule.

        It is the usual number or the closest one, with those up to the usual number preferred.
        """
        divisors = (parts for parts in range(1, samples + 1) if samples % parts == 0)
        for parts in sorted(divisors, key=lambda n: (n > usually, abs(n - usually))):
            with suppress(ScheduleError):
                found = replace(self, microbatches=parts)
                found.build()
                return found
        return self

    def of_batch(self, samples: int, most: int) -> PipelineSpec:
        """Return the spec for a batch of this many samples.

        It is the spec itself if its number of microbatches divides the batch, or the schedule is
        asynchronous.  Otherwise it has the fewest equal microbatches of at most `most` samples that
        fit the schedule.
        """
        if not samples % self.microbatches or SCHEDULES[self.schedule].asynchronous:
            return self
        for parts in range(-(-samples // most), samples + 1):
            if samples % parts == 0:
                with suppress(ScheduleError):
                    found = replace(self, microbatches=parts)
                    found.build()
                    return found
        return self

    def shares(self, schedule: Schedule) -> list[int]:
        """Return each stage's share of the work: the devices of the first worker that holds it."""
        return [self.workers[holder[0]].mesh.world_size for holder in schedule.holders]

    def build(self) -> Schedule:
        """Return the schedule of a step, or of a stream of batches if it is asynchronous."""
        workers = len(self.workers)
        if not SCHEDULES[self.schedule].asynchronous:
            return build(self.schedule, workers, self.microbatches, self.stages)
        if self.stages != workers:
            raise InputError(
                f"{argument('schedule', self.schedule)} has one stage on each worker: {workers}, not "
                f"{self.stages}. Pass {workers - 1} cuts."
            )
        return typical(self.schedule, workers, self.microbatches)


def _stages(asked: Pipeline, name: str, workers: int) -> int:
    """Return the total number of stages; raise `InputError` if the schedule has another number."""
    named = SCHEDULES.named(name)
    each = named.per_worker or asked.virtual or 2
    if asked.virtual not in (None, each):
        raise InputError(
            f"{argument('virtual', asked.virtual)}: {name} has {each} "
            f"{'stage' if each == 1 else 'stages'} on each worker. Pass "
            f"{argument('schedule', 'interleaved')}, or leave {argument('virtual')} out."
        )
    usual, layers = each * workers, asked.layers and Layers.of(asked.layers).stages
    if not asked.cuts and not layers:
        return usual
    count, given = len(asked.cuts) + 1, f"{len(asked.cuts)} cuts"
    remedy = f"pass {usual - 1} cuts"
    if layers:
        count, given = len(layers), f"{argument('layers', list(layers))}"
        remedy = f"pass the layers of {usual} stages"
    is_free = named.asynchronous or (named.per_worker is None and asked.virtual is None)
    if not is_free and count != usual:
        raise InputError(
            f"{given} make {count} stages; {name} on {workers} workers has {usual}: {remedy}, or "
            f"{argument('schedule', 'interleaved')} for several stages on each worker."
        )
    return count


def _permitted(name: str, asynchronous: bool) -> None:
    """Raise `InputError` unless `asynchronous` is set exactly if the schedule is asynchronous."""
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


def worker_meshes(mesh: Mesh, stages: int | Sequence[Shape]) -> tuple[WorkerPlan, ...]:
    """Return the workers, whose meshes have consecutive ranks.

    A number of stages divides the mesh into equal parts along its outer axes; shapes are used as given.
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
    """Return one of `count` equal parts of a mesh; outer axes are divided first."""
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
