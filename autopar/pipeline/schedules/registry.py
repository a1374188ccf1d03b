"""Registry of schedules by name, for `Pipeline(schedule=...)`.

``SCHEDULES.add("mine", Named(mine))`` registers your own (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.chimera import chimera
from autopar.pipeline.schedules.dualpipe_v import dualpipe_v
from autopar.pipeline.schedules.eager import eager
from autopar.pipeline.schedules.gpipe import gpipe
from autopar.pipeline.schedules.interleaved import interleaved
from autopar.pipeline.schedules.naive import naive
from autopar.pipeline.schedules.one_f_one_b import one_f_one_b
from autopar.pipeline.schedules.pipedream import pipedream, pipedream_vertical
from autopar.pipeline.schedules.pipedream_2bw import pipedream_2bw
from autopar.pipeline.schedules.schedule import Schedule
from autopar.pipeline.schedules.zb_v import zb_v
from autopar.pipeline.schedules.zero_bubble import zb_h1, zb_h2
from autopar.utils.registry import Registry


@dataclass(frozen=True, slots=True)
class Named:
    """A schedule that can be requested by name.

    build              (workers, microbatches) -> Schedule
    per_worker         stages on each worker; None: any number, and `build` also takes the total number
                       of stages
    asynchronous       results differ from those of a synchronous step; only used on request.  `build`
                       also takes the number of microbatches in a batch, after which weights are updated
    parts              workers -> the default number of microbatches of a batch
    """

    build: Callable[..., Schedule]
    per_worker: int | None = 1
    asynchronous: bool = False
    parts: Callable[[int], int] = lambda workers: 2 * workers


class Schedules(Registry[Named]):
    """The schedules by name."""

    def fault(self, name: str, value: Named) -> str:
        """Return why a schedule cannot be added, or ""."""
        if not isinstance(value, Named):
            return f"has to be a `Named`, such as Named({getattr(value, '__name__', 'build')})"
        if not callable(value.build):
            return f"needs a function (workers, microbatches) -> Schedule, not {value.build!r}"
        return ""


SCHEDULES = Schedules("schedule", {
    "naive": Named(naive),
    "gpipe": Named(gpipe),
    "1f1b": Named(one_f_one_b),
    "eager-1f1b": Named(eager),
    "interleaved": Named(interleaved, per_worker=None),
    "zb-h1": Named(zb_h1),
    "zb-h2": Named(zb_h2),
    "zb-v": Named(zb_v, per_worker=2),
    "dualpipe-v": Named(dualpipe_v, per_worker=2),
    "chimera": Named(chimera),
    "pipedream": Named(pipedream, asynchronous=True, parts=lambda _: 1),
    "pipedream-vertical": Named(pipedream_vertical, asynchronous=True, parts=lambda _: 1),
    "pipedream-2bw": Named(pipedream_2bw, asynchronous=True, parts=lambda workers: workers),
})  # fmt: skip


def build(name: str, workers: int, microbatches: int, stages: int | None = None) -> Schedule:
    """Return the schedule called `name`.

    Raises `InputError` if there is none of this name, and `ScheduleError` if it does not support these
    sizes, or if its function returns another schedule.
    """
    named = SCHEDULES.named(name)
    if workers < 1 or microbatches < 1:
        raise ScheduleError(
            f"{name} needs at least one worker and one microbatch, not {workers} and {microbatches}."
        )
    if named.per_worker is None:
        return made_as_asked(name, workers, microbatches, stages, stages)
    expected = named.per_worker * workers
    if stages not in (None, expected):
        raise ScheduleError(
            f"{name} has {expected} stages on {workers} workers, not {stages}; choose interleaved "
            f"for another number of stages per worker."
        )
    return made_as_asked(name, workers, microbatches, expected)


def made_as_asked(
    name: str, workers: int, microbatches: int, stages: int | None, *further: int | None
) -> Schedule:
    """Call the function of a schedule; raise `ScheduleError` if it returns another one.

    `further` are the arguments that some functions take after the number of microbatches.
    """
    made = SCHEDULES[name].build(workers, microbatches, *further)
    if not isinstance(made, Schedule):
        raise ScheduleError(
            f"The function of the schedule {name} returns a {type(made).__name__}, not a Schedule."
        )
    asked = {"name": name, "workers": workers, "microbatches": microbatches}
    found = {"name": made.name, "workers": len(made.workers), "microbatches": made.microbatches}
    if stages is not None:
        asked["stages"], found["stages"] = stages, made.stages
    for what, expected in asked.items():
        if found[what] != expected:
            raise ScheduleError(
                f"The function of the schedule {name} was asked for {what} {expected} and returned "
                f"{what} {found[what]}: correct the function."
            )
    return made
