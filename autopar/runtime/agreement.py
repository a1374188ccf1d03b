"""Ranks agree before they compute: the same model, plan and batch, or a clear error on all of them.

Words travel through the store that the processes were started with, not through collectives, so that
a disagreement is found before the first collective can hang on it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from autopar import errors
from autopar.errors import AutoparError, RankFailedError, RankMismatchError
from autopar.runtime import _torch

PATIENCE = timedelta(seconds=300)
"""How long ranks wait for each other to arrive, planning included."""


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


def same(what: str, value: str) -> None:
    """Raise `RankMismatchError` on every rank unless all ranks have this value."""
    size, store = dist.get_world_size(), _torch.store()
    here = f"autopar/same/{next(_rounds)}"
    store.set(f"{here}/{dist.get_rank()}", value)
    found = [_get(f"{here}/{rank}", rank, what) for rank in range(size)]
    odd = [rank for rank, other in enumerate(found) if other != found[0]]
    if odd:
        listed = ", ".join(map(str, odd))
        raise RankMismatchError(
            f"Ranks disagree about {what}: rank 0 has {found[0]!r}, but rank {listed} "
            f"{'has' if len(odd) == 1 else 'have'} {found[odd[0]]!r}. Every rank must build the same "
            "model (same sizes, same code) and call autopar with the same arguments."
        )


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
    try:
        _torch.store().wait([key], PATIENCE)
    except RuntimeError:
        raise RankFailedError(
            f"Rank {rank} did not come to compare {what} within {PATIENCE.seconds} s: it failed, or "
            "it does not call autopar where this rank does."
        ) from None
    return str(_torch.store().get(key).decode())
