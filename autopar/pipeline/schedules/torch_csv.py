"""Writes a schedule as the CSV that `torch.distributed.pipelining` loads: a line of actions per worker.

Torch's engine passes tensors between neighbouring stages only, so transfers are written for these
only.  Tensors that skip stages have to be relayed (`autopar/runtime/pipeline/relays.py`).
"""

from __future__ import annotations

from autopar.errors import ScheduleError
from autopar.pipeline.schedules.action import Action
from autopar.pipeline.schedules.lower import lower, without_transfers
from autopar.pipeline.schedules.schedule import Schedule, chain


def torch_csv(schedule: Schedule, transfers: bool = True) -> str:
    """Return the list of every worker, such as ``0F0,0SEND_F0,0F1,...``.

    With `transfers` the text is for `_load_csv(path, format="compute_comms")`, otherwise for
    ``"compute_only"``.  Raises `ScheduleError` if torch's engine does not support the schedule.
    """
    _check(schedule)
    bare = without_transfers(schedule)
    written = lower(bare, chain(schedule.stages)) if transfers else bare
    return "".join(",".join(map(_text, row)) + "\n" for row in written.workers)


def _text(action: Action) -> str:
    """Return torch's form of an action: without peers, and without a microbatch for REDUCE_GRAD."""
    if action.kind == "REDUCE":
        return f"{action.stage}REDUCE_GRAD"
    return f"{action.stage}{action.kind}{action.microbatch}"


def _check(schedule: Schedule) -> None:
    if schedule.asynchronous:
        raise ScheduleError(
            f"{schedule.name} updates weights while microbatches are in flight; torch's engine knows "
            "synchronous schedules only."
        )
    for stage, holders in enumerate(schedule.holders):
        if len(holders) != 1:
            raise ScheduleError(
                f"{schedule.name} has stage {stage} on workers {', '.join(map(str, holders))}; torch's "
                "engine knows one worker per stage."
            )
    last = [
        action.microbatch
        for row in schedule.workers
        for action in row
        if action.kind == "F" and action.stage == schedule.stages - 1
    ]
    if last != sorted(last):
        raise ScheduleError(
            f"{schedule.name} brings microbatches to the last stage in the order "
            f"{', '.join(map(str, last))}; torch's engine finds losses by their place, so they must "
            "come in order."
        )
