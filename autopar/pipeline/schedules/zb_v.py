"""ZB-V: two stages per worker, placed as a V, so that the first and the last stage share a worker.

Qi et al., arXiv:2401.10241, section 6.  Worker w holds stages w (down) and 2 workers - 1 - w (up).
There is no bubble if F, I and W take equally long and updates need no barrier, in the memory of 1F1B.
"""

from __future__ import annotations

from collections.abc import Callable

from autopar.pipeline.schedules.action import Action, forward, input_gradient, weight_gradient
from autopar.pipeline.schedules.schedule import Schedule, schedule_of


def zb_v(workers: int, microbatches: int) -> Schedule:
    """Return the schedule.

    The pattern needs 2 workers - 1 microbatches.  If there are fewer, the others are removed from it.
    """
    lists = (
        [a for a in _actions(worker, workers, microbatches) if a.microbatch < microbatches]
        for worker in range(workers)
    )
    return schedule_of("zb-v", 2 * workers, microbatches, lists)


def _actions(worker: int, workers: int, microbatches: int) -> list[Action]:
    down, up = worker, 2 * workers - 1 - worker
    total = max(microbatches, 2 * workers - 1)
    actions: list[Action] = []
    done = dict.fromkeys([(make, s) for make in _KINDS for s in (down, up)], 0)

    def do(stage: int, *kinds: _Make) -> None:
        for make in kinds:
            actions.append(make(stage, done[make, stage]))
            done[make, stage] += 1

    for _ in range(2 * (workers - worker) - 1):
        do(down, forward)
    for _ in range(worker):
        do(up, forward)
        do(down, forward)
    for _ in range(workers - worker):
        do(up, *_KINDS)
    while done[forward, up] < total:
        do(down, *_KINDS[done[forward, down] == total :])
        do(up, *_KINDS)
    for _ in range(worker):
        do(down, input_gradient)
        do(up, input_gradient)
    for _ in range(workers - worker):
        do(down, input_gradient, weight_gradient)
    for stage in (up, down):
        while done[weight_gradient, stage] < total:
            do(stage, weight_gradient)
    return actions


_Make = Callable[[int, int], Action]
_KINDS: tuple[_Make, _Make, _Make] = (forward, input_gradient, weight_gradient)
