"""A step that failed on this rank: found out before the next collective, by all ranks together.

A loop may catch an error and go on.  That is safe where every rank failed with the same collectives
behind it; where one failed alone, its next collective would meet another one of its peers.  So whoever
failed asks, through the store, how far all others came before it does anything else together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch.distributed as dist

from autopar.errors import RankFailedError, RankMismatchError
from autopar.runtime import _torch, agreement
from autopar.runtime import failure_watchdog as faults

RESTART = "Start all ranks again, and go on from the last checkpoint (parallel.load(path))."
REMEDY = (
    "All ranks stop here. Let every rank see the error (dist.all_reduce of a flag, then `continue` on "
    "all), or let none catch it, and go on from the last checkpoint."
)


def agree_on_failure(groups: Mapping[str, dist.ProcessGroup], state: str) -> None:
    """Return where all ranks failed in the same place; else end them all with `RankMismatchError`.

    The place is how many collectives of every group had begun; `state` says what else must agree.
    """
    if dist.get_world_size() == 1:
        return
    begun = {name: _torch.collectives_begun(group) for name, group in groups.items()}
    try:
        agreement.assert_same_on_all_ranks(
            "how far the step came that failed here",
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
    """Say to all ranks that a pipeline's step failed here: they wait for what will not be sent."""
    faults.report(f"{error} (in a pipeline's step. {RESTART})")


def refuse_broken(error: str) -> None:
    """Raise `RankFailedError` in a pipeline of which a step failed with this error, "" for none."""
    if error:
        raise RankFailedError(
            f"A step of this pipeline failed ({error}), and what its stages sent each other is lost. "
            f"{RESTART}"
        )
