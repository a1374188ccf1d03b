"""PipeDream-2BW: 1F1B that does not drain between updates, with one update per batch of microbatches.

Narayanan et al., arXiv:2006.09503, section 3.1.  There are two versions of the weights.  On every
stage, batch b uses the weights after b - 1 updates:

    W(b + 1) = W(b) - rate * gradient of batch b at W(b - 1)
"""

from __future__ import annotations

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import Action
from autopar.pipeline.schedules.one_f_one_b import one_f_one_b
from autopar.pipeline.schedules.schedule import Schedule


def pipedream_2bw(workers: int, microbatches: int, per_update: int | None = None) -> Schedule:
    """Return the schedule with batches of `per_update` microbatches.

    These are at least as many as workers, which is the default.
    """
    size = workers if per_update is None else per_update
    if size < workers or microbatches % size:
        raise ScheduleError(
            f"pipedream-2bw updates after {size} microbatches: that must be at least the number of "
            f"workers ({workers}) and divide the number of microbatches ({microbatches})."
        )
    lists = tuple(_updated(row, size) for row in one_f_one_b(workers, microbatches).workers)
    return Schedule("pipedream-2bw", workers, microbatches, lists, asynchronous=True)


def _updated(actions: tuple[Action, ...], size: int) -> tuple[Action, ...]:
    made: list[Action] = []
    for action in actions:
        batch, number = divmod(action.microbatch, size)
        version = max(0, batch - 1)
        made.append(Action(action.kind, action.stage, action.microbatch, version=version))
        if action.kind == "B" and number == size - 1:
            made.append(Action("U", action.stage, batch))
    return tuple(made)
