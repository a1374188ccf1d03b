"""Eager 1F1B: 1F1B whose workers run ahead as far as ZB-H2's, so that slow transfers do not stall it.

Zhuang et al., arXiv:2211.05322.  With s stages from its own to the last, a worker has up
to 2 s - 1 microbatches in flight instead of s; what it sends is not awaited at once.
"""

from __future__ import annotations

from autopar.schedules.action import Action, backward, forward
from autopar.schedules.schedule import Schedule, schedule_of


def eager(workers: int, microbatches: int) -> Schedule:
    """One stage per worker."""
    lists = (_actions(stage, workers, microbatches) for stage in range(workers))
    return schedule_of("eager-1f1b", workers, microbatches, lists)


def _actions(stage: int, workers: int, microbatches: int) -> list[Action]:
    in_flight = min(2 * (workers - stage) - 1, microbatches)
    actions = [forward(stage, m) for m in range(in_flight)]
    for microbatch in range(microbatches):
        actions.append(backward(stage, microbatch))
        if microbatch + in_flight < microbatches:
            actions.append(forward(stage, microbatch + in_flight))
    return actions
