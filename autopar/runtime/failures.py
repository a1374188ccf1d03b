"""Checks after a failed step that all ranks failed at the same place, before the next collective.

A training loop may catch an error and go on.  That is safe if every rank failed after the same
collectives.  If one failed alone, its next collective would be matched with a different one of its
peers.  So a rank that failed first compares, through the store, how far all ranks came.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch.distributed as dist

from autopar.errors import RankFailedError, RankMismatchError
from autopar.runtime import _torch, agreement
from autopar.runtime import failure_watchdog as faults

RESTART = "Start all ranks again, and continue from the last checkpoint (parallel.load(path))."
REMEDY = (
    "All ranks stop here. Let every rank see the error (dist.all_reduce of a flag, then "
    "`continue` on all), or let none catch it, and continue from the last checkpoint."
)


def agree_on_failure(groups: Mapping[str, dist.ProcessGroup], state: str) -> None:
    """Return if all ranks failed at the same place; otherwise end them all with `RankMismatchError`.

    The place is the number of started collectives of every group; `state` must agree as well.
    """
    if dist.get_world_size() == 1:
        return
    begun = {name: _torch.collectives_begun(group) for name, group in groups.items()}
    try:
        agreement.assert_same_on_all_ranks(
            "the progress of the step that failed on this rank",
            f"{json.dumps(begun)} {state}", REMEDY,
        )  # fmt: skip
    except (RankMismatchError, RankFailedError) as error:
        message = (
            f"Rank {dist.get_rank()} caught an error in a training step that other ranks did not see, "
            f"or saw elsewhere: their collectives no longer match. {error} {REMEDY}"
        )
        faults.report(message)
        raise RankMismatchError(message) from error


def report_broken(error: str) -> None:
    """Tell all ranks that a pipeline's step failed here: they wait for data that will not be sent."""
    faults.report(f"{error} (in a pipeline's step. {RESTART})")


def refuse_broken(error: str) -> None:
    """Raise `RankFailedError` if an earlier step of the pipeline failed with this error ("": none)."""
    if error:
        raise RankFailedError(
            f"A step of this pipeline failed ({error}), and the messages between its stages are "
            f"lost. {RESTART}"
        )
