"""Interleaved 1F1B: a worker has several stages, `workers` apart, which shortens the pipeline's fill.

Narayanan et al., arXiv:2104.04473, section 2.2.  Microbatches form groups: a worker runs a whole group
through one of its stages before the next stage.  In the paper, groups have as many microbatches as
there are workers.  If the number of microbatches is not a multiple of that, groups are as even as
possible and none is smaller.  With fewer microbatches than workers there is one group.
"""

from __future__ import annotations

import itertools

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import Action, backward, forward
from autopar.pipeline.schedules.schedule import Schedule, schedule_of


def interleaved(workers: int, microbatches: int, stages: int | None = None) -> Schedule:
    """Return the schedule; `stages` must be a multiple of the workers (None: twice the workers)."""
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


def warm_up(workers: int, microbatches: int, rounds: int) -> list[list[int]]:
    """Return by worker, for each of its stages: the forwards before the worker's first backward."""
    groups = _groups(workers, microbatches)
    found = []
    for worker in range(workers):
        left, of_rounds = _ahead(worker, workers, rounds, groups), [0] * rounds
        for group, round_ in itertools.product(groups, range(rounds)):
            ran = min(left, len(group))
            of_rounds[round_] += ran
            left -= ran
        found.append(of_rounds)
    return found


def _ahead(worker: int, workers: int, rounds: int, groups: list[range]) -> int:
    """Return how many forwards a worker runs ahead of its backwards.

    It reaches its last stage after (rounds - 1) groups.  Each worker before the last is two steps
    further ahead: one for the forward on its way down, one for the backward on its way up.
    """
    return (rounds - 1) * max(map(len, groups)) + 2 * (workers - 1 - worker) + 1


def _groups(workers: int, microbatches: int) -> list[range]:
    count = max(1, microbatches // workers)
    bounds = [-(-microbatches * number // count) for number in range(count + 1)]
    return [range(first, last) for first, last in itertools.pairwise(bounds)]


def _actions(worker: int, workers: int, rounds: int, groups: list[range]) -> list[Action]:
    stages = [worker + workers * round_ for round_ in range(rounds)]
    forwards = [forward(stage, m) for group in groups for stage in stages for m in group]
    backwards = [backward(stage, m) for group in groups for stage in stages[::-1] for m in group]
    ahead = min(_ahead(worker, workers, rounds, groups), len(forwards))
    actions = forwards[:ahead]
    for position, action in enumerate(backwards):
        actions.append(action)
        actions += forwards[ahead + position : ahead + position + 1]
    return actions
