"""PipeDream: 1F1B that does not drain between updates; each microbatch is a minibatch of its own.

Narayanan et al., SOSP 2019, section 3.3.  When stage s of S starts a microbatch, the updates of the
S - 1 - s microbatches before it are still missing.  *Weight stashing*: the backward uses the weights of
its own forward.  *Vertical sync*: all stages use weights with as many updates as those of the first
stage when the microbatch entered.

The lists are a section of the stream that begins empty and ends drained.
"""

from __future__ import annotations

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import Action
from autopar.pipeline.schedules.one_f_one_b import one_f_one_b
from autopar.pipeline.schedules.schedule import Schedule
from autopar.utils.messages import argument


def pipedream(workers: int, microbatches: int, per_update: int = 1) -> Schedule:
    """Return the schedule with weight stashing: stage s keeps up to S - s versions."""
    _refuse_parts("pipedream", per_update)
    lists = tuple(
        _updated(actions, missing=workers - 1 - stage)
        for stage, actions in enumerate(one_f_one_b(workers, microbatches).workers)
    )
    return Schedule("pipedream", workers, microbatches, lists, asynchronous=True)


def pipedream_vertical(workers: int, microbatches: int, per_update: int = 1) -> Schedule:
    """Return the schedule with vertical sync: every stage keeps up to S versions."""
    _refuse_parts("pipedream-vertical", per_update)
    lists = tuple(
        _updated(actions, missing=workers - 1)
        for actions in one_f_one_b(workers, microbatches).workers
    )
    return Schedule("pipedream-vertical", workers, microbatches, lists, asynchronous=True)


def _refuse_parts(name: str, per_update: int) -> None:
    if per_update != 1:
        raise ScheduleError(
            f"{name} updates after every microbatch: each is a batch of its own, and cannot be cut into "
            f"{per_update}. Pass smaller batches with {argument('microbatches', 1)}, or take "
            "pipedream-2bw."
        )


def _updated(actions: tuple[Action, ...], missing: int) -> tuple[Action, ...]:
    made: list[Action] = []
    for action in actions:
        version = max(0, action.microbatch - missing)
        made.append(Action(action.kind, action.stage, action.microbatch, version=version))
        if action.kind == "B":
            made.append(Action("U", action.stage, action.microbatch))
    return tuple(made)
