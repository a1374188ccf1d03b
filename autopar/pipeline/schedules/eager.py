"""Eager 1F1B: 1F1B with as many microbatches in flight as ZB-H2, to tolerate slow transfers.

Zhuang et al., arXiv:2211.05322.  A worker with s stages from its own to the last has up to 2 s - 1
microbatches in flight instead of s, so it does not wait at once for the results of what it sends.
"""

from __future__ import annotations

from autopar.pipeline.schedules.one_f_one_b import in_turn
from autopar.pipeline.schedules.schedule import Schedule, schedule_of


def eager(workers: int, microbatches: int) -> Schedule:
    """Return the schedule, with one stage per worker."""
    ahead = (2 * (workers - stage) - 1 for stage in range(workers))
    lists = (in_turn(stage, microbatches, most) for stage, most in enumerate(ahead))
    return schedule_of("eager-1f1b", workers, microbatches, lists)
