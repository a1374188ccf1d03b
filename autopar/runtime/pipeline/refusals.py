"""What is refused to ranks of one stage alone, whose parameters other ranks do not have.

If such a rank raised by itself and its loop went on, the other ranks would wait for it in the next
step.  So a step collects its refusals, tells all ranks, and raises on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist

from autopar.errors import InputError, RankFailedError
from autopar.runtime import _torch, launch
from autopar.runtime.failures import RESTART

Told = tuple[bool, str, str]
"""Whether the rank trains parameters, and what was refused to it: an update, this step."""


@contextmanager
def refused_by_all() -> Iterator[None]:
    """Raise on all ranks the `InputError` that the body raises on one; all ranks call it."""
    if launch.alone():
        yield
        return
    refused: InputError | None = None
    try:
        yield
    except InputError as error:
        refused = error
    said = "" if refused is None else str(refused)
    ranks = [said] * dist.get_world_size()
    dist.all_gather_object(ranks, said)
    if refused is not None:
        raise refused
    for rank, there in enumerate(ranks):
        if there:
            raise InputError(f"Rank {rank} refuses: {there}")


class Refusals:
    """The refusals of this rank since the last step."""

    def __init__(self, trains: bool) -> None:
        self._trains, self._update = trains, ""
        self._step: InputError | None = None

    def note_update(self, error: InputError) -> None:
        """Note that an optimizer was refused to step on this rank's parameters."""
        self._update = str(error)

    def collect(self, *checks: Callable[[], None]) -> None:
        """Keep the first `InputError` that these checks raise."""
        self._step = None
        try:
            with _torch.untracked():
                for check in checks:
                    check()
        except InputError as error:
            self._step = error

    @property
    def is_any(self) -> bool:
        """Whether anything was refused to this rank."""
        return bool(self._update) or self._step is not None

    def settle(self, group: dist.ProcessGroup | None) -> None:
        """Raise on all ranks what one of them refuses; all ranks call it (`group`: None if alone).

        Raises `InputError` for the step, and `RankFailedError` if some ranks updated their parameters
        while others were refused to.
        """
        mine: Told = (self._trains, self._update, "" if self._step is None else str(self._step))
        ranks = [mine]
        if group is not None:
            ranks = [mine] * dist.get_world_size(group)
            dist.all_gather_object(ranks, mine, group=group)
        step, self._update = self._step, ""
        if step is not None:
            raise step
        for rank, (_, _, refused) in enumerate(ranks):
            if refused:
                raise InputError(f"Rank {rank} refuses this step: {refused}")
        updates = {rank: update for rank, (trains, update, _) in enumerate(ranks) if trains}
        refused_on = [rank for rank, update in updates.items() if update]
        if len(refused_on) not in (0, len(updates)):
            raise RankFailedError(
                "An optimizer was refused to step on rank "
                f"{', '.join(map(str, refused_on))} alone, whose loop went on: the stages have been "
                "updated in different steps. It said: "
                f"{updates[refused_on[0]]} {RESTART}"
            )
