"""Eager 1F1B: 1F1B whose workers run ahead as far as ZB-H2's, so that slow transfers do not stall it.

Zhuang et al., arXiv:2211.05322.  With s stages from its own to the last, a worker has up
to 2 s - 1 microbatches in flight instead of s; what it sends is not awaited at once.
"""

from __future__ import annotations

from autopar.pipeline.schedules.one_f_one_b import in_turn
from autopar.pipeline.schedules.schedule import Schedule, schedule_of


def eager(workers: int, microbatches: int) -> Schedule:
    """One stage per worker."""
    ahead = (2 * (workers - stage) - 1 for stage in range(workers))
    lists = (in_turn(stage, microbatches, most) for stage, most in enumerate(ahead))
    return schedule_of("eager-1f1b", workers, microbatches, lists)
