"""Ranks agree before they compute: the same model, plan and batch, or a clear error on all of them.

Words travel through the store that the processes were started with, not through collectives, so that
a disagreement is found before the first collective can hang on it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

import torch.distributed as dist

from autopar import errors
from autopar.errors import AutoparError, RankFailedError, RankMismatchError
from autopar.runtime import _torch, faults

PATIENCE_S = 300
"""How long ranks wait for each other to arrive, planning included."""
POLL_S = 0.25
"""How often one that has waited for long looks again."""
SAME_CALLS = (
    "Every rank must build the same model (same sizes, same code) and call autopar with the same "
    "arguments."
)
SAME_BATCH = "Give every rank the same whole batch: seed what shuffles alike on all of them."


class _Rounds:
    """Numbers the meetings of one launch; a new default group starts anew."""

    def __init__(self) -> None:
        self._store: object = None
        self._count = 0

    def __next__(self) -> int:
        store = _torch.store()
        if store is not self._store:
            self._store, self._count = store, 0
        self._count += 1
        return self._count


_rounds = _Rounds()


def same(what: str, value: str, remedy: str = SAME_CALLS) -> None:
    """Raise `RankMismatchError` on every rank unless all ranks compare this, and have this value."""
    size, store = dist.get_world_size(), _torch.store()
    here = f"autopar/same/{next(_rounds)}"
    store.set(f"{here}/{dist.get_rank()}", json.dumps([what, value]))
    found = [json.loads(_get(f"{here}/{rank}", rank, what)) for rank in range(size)]
    compared, values = zip(*found, strict=True)
    if len(set(compared)) > 1:
        raise RankMismatchError(
            f"Ranks do different things: rank 0 compares {compared[0]}, but {_odd(compared)}. "
            f"{SAME_CALLS}"
        )
    if len(set(values)) > 1:
        raise RankMismatchError(
            f"Ranks disagree about {what}: rank 0 has {values[0]!r}, but {_odd(values)}. {remedy}"
        )


def _odd(values: Sequence[str]) -> str:
    """Whose is another than rank 0's, and the first of these."""
    odd = [rank for rank, value in enumerate(values) if value != values[0]]
    has = "has" if len(odd) == 1 else "have"
    return f"rank {', '.join(map(str, odd))} {has} {values[odd[0]]!r}"


def from_first_rank(make: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """What rank 0 makes; where it raises, every rank raises."""
    key = f"autopar/first/{next(_rounds)}"
    if dist.get_rank() == 0:
        try:
            made = make()
        except Exception as error:
            _torch.store().set(key, json.dumps([type(error).__name__, str(error)]))
            raise
        _torch.store().set(key, json.dumps(["", *made]))
        return made
    kind, *values = json.loads(_get(key, 0, "the plan"))
    if not kind:
        return tuple(values)
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, AutoparError):
        raise found(values[0])
    raise RankFailedError(f"Rank 0 failed while planning: {kind}: {values[0]}")


def _get(key: str, rank: int, what: str) -> str:
    """What a rank wrote there, unless it ends before it does."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < PATIENCE_S:
        left = _has_left(rank)  # asked first: it may write, and then leave
        if _is_written(key):
            return str(_torch.store().get(key).decode())
        if left:
            raise RankFailedError(
                f"Rank {rank} ended before it came to compare {what}: it failed, or it left early."
            )
        time.sleep(min(POLL_S, 0.001 + waited / 10))  # `wait` warns whenever it gives up
    raise RankFailedError(
        f"Rank {rank} did not come to compare {what} within {PATIENCE_S} s: it failed, or "
        "it does not call autopar where this rank does."
    )


def _is_written(key: str) -> bool:
    try:
        return bool(_torch.store().check([key]))
    except RuntimeError:  # nobody keeps the store any more
        return False


def _has_left(rank: int) -> bool:
    """Whether a rank has ended; so have all, as far as one can tell, once nobody keeps the store."""
    try:
        return faults.has_left(rank)
    except RuntimeError:
        return True
