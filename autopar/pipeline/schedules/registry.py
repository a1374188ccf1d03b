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


SCHEDULES: Registry[Named] = Registry("schedule", {
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
    sizes.
    """
    named = SCHEDULES.named(name)
    if workers < 1 or microbatches < 1:
        raise ScheduleError(
            f"{name} needs at least one worker and one microbatch, not {workers} and {microbatches}."
        )
    if named.per_worker is None:
        return named.build(workers, microbatches, stages)
    expected = named.per_worker * workers
    if stages not in (None, expected):
        raise ScheduleError(
            f"{name} has {expected} stages on {workers} workers, not {stages}; choose interleaved "
            f"for another number of stages per worker."
        )
    return named.build(workers, microbatches)
