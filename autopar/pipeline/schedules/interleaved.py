"""Interleaved 1F1B: a worker holds several stages, `workers` apart; the pipeline fills in shorter steps.

Narayanan et al., arXiv:2104.04473, section 2.2.  Microbatches go in groups: a worker takes a whole group
through one of its stages before it turns to the next.  The paper's groups have as many microbatches as
there are workers; where that does not divide, groups are as even as they can be and none is smaller.
"""

from __future__ import annotations

import itertools

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import Action, backward, forward
from autopar.pipeline.schedules.schedule import Schedule, schedule_of


def interleaved(workers: int, microbatches: int, stages: int | None = None) -> Schedule:
    """`stages` is a multiple of the workers; twice as many where nothing is said."""
    stages = 2 * workers if stages is None else stages
    if stages % workers:
        raise ScheduleError(
            f"interleaved gives every worker equally many stages: {stages} stages do not divide by "
            f"{workers} workers; take {stages // workers * workers or workers} stages."
        )
    rounds = stages // workers
    groups = _groups(workers, microbatches)
    lists = (_actions(worker, workers, rounds, groups) for worker in range(workers))
    return schedule_of("interleaved", stages, microbatches, lists)


def _groups(workers: int, microbatches: int) -> list[range]:
    count = max(1, microbatches // workers)
    bounds = [-(-microbatches * number // count) for number in range(count + 1)]
    return [range(first, last) for first, last in itertools.pairwise(bounds)]


def _actions(worker: int, workers: int, rounds: int, groups: list[range]) -> list[Action]:
    stages = [worker + workers * round_ for round_ in range(rounds)]
    forwards = [forward(stage, m) for group in groups for stage in stages for m in group]
    backwards = [backward(stage, m) for group in groups for stage in stages[::-1] for m in group]
    # The last stage of a group comes after (rounds - 1) groups; each worker before the last one is two
    # steps further ahead: one for the forward on its way down, one for the backward on its way up.
    ahead = (rounds - 1) * max(map(len, groups)) + 2 * (workers - 1 - worker) + 1
    ahead = min(ahead, len(forwards))
    actions = forwards[:ahead]
    for position, action in enumerate(backwards):
        actions.append(action)
        actions += forwards[ahead + position : ahead + position + 1]
    return actions
