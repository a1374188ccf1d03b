"""One microbatch at a time: all stages forward, all stages backward.  Nothing overlaps."""

from __future__ import annotations

from autopar.pipeline.schedules.action import backward, forward
from autopar.pipeline.schedules.schedule import Schedule, schedule_of


def naive(workers: int, microbatches: int) -> Schedule:
    """Return the schedule, which keeps one microbatch; all workers but one are idle."""
    lists = (
        [make(stage, m) for m in range(microbatches) for make in (forward, backward)]
        for stage in range(workers)
    )
    return schedule_of("naive", workers, microbatches, lists)
