"""GPipe: all forwards, then all backwards.  Huang et al., arXiv:1811.06965, section 2.3."""

from __future__ import annotations

from autopar.pipeline.schedules.action import backward, forward
from autopar.pipeline.schedules.schedule import Schedule, schedule_of


def gpipe(workers: int, microbatches: int) -> Schedule:
    """Return the schedule, which keeps all microbatches.

    Backwards have the order of the forwards; every order takes equally long.
    """
    lists = (
        [make(stage, m) for make in (forward, backward) for m in range(microbatches)]
        for stage in range(workers)
    )
    return schedule_of("gpipe", workers, microbatches, lists)
