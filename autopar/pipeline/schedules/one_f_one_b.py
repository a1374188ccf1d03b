"""1F1B: after warmup, each worker alternates between one forward and one backward.

PipeDream-flush (Narayanan et al., arXiv:2006.09503, section 3.2), DAPPLE (Fan et al.,
arXiv:2007.01045, section 3.2: early backward scheduling).  It takes as long as GPipe, but a worker
keeps at most as many microbatches as there are stages from its own to the last.
"""

from __future__ import annotations

from autopar.pipeline.schedules.action import Action, backward, forward
from autopar.pipeline.schedules.schedule import Schedule, schedule_of


def one_f_one_b(workers: int, microbatches: int) -> Schedule:
    """Return the schedule, with one stage per worker."""
    lists = (in_turn(stage, microbatches, workers - stage) for stage in range(workers))
    return schedule_of("1f1b", workers, microbatches, lists)


def in_turn(stage: int, microbatches: int, most: int) -> list[Action]:
    """Return the actions of a stage: `most` forwards, then backwards and forwards in turn."""
    in_flight = min(most, microbatches)
    actions = [forward(stage, m) for m in range(in_flight)]
    for microbatch in range(microbatches):
        actions.append(backward(stage, microbatch))
        if microbatch + in_flight < microbatches:
            actions.append(forward(stage, microbatch + in_flight))
    return actions
