"""Ranks agree before they compute: the same model, plan and batch, or a clear error on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from autopar import errors
from autopar.errors import AutoparError, RankFailedError, RankMismatchError

T = TypeVar("T")


def same(what: str, value: str) -> None:
    """Raise `RankMismatchError` on every rank unless all ranks have this value."""
    size = dist.get_world_size()
    if size == 1:
        return
    found: list[str] = [""] * size
    dist.all_gather_object(found, value)
    odd = [rank for rank, other in enumerate(found) if other != found[0]]
    if odd:
        listed = ", ".join(map(str, odd))
        raise RankMismatchError(
            f"Ranks disagree about {what}: rank 0 has {found[0]!r}, but rank {listed} "
            f"{'has' if len(odd) == 1 else 'have'} {found[odd[0]]!r}. Every rank must build the same "
            "model (same sizes, same code) and call autopar with the same arguments."
        )


def from_first_rank(make: Callable[[], T]) -> T:
    """What rank 0 makes; where it raises, every rank raises."""
    if dist.get_world_size() == 1:
        return make()
    message: list[Any] = [None, None]
    raised: BaseException | None = None
    if dist.get_rank() == 0:
        try:
            message = ["made", make()]
        except Exception as error:
            raised = error
            message = [type(error).__name__, str(error)]
    dist.broadcast_object_list(message, src=0)
    if raised is not None:
        raise raised
    kind, value = message
    if kind == "made":
        return value  # type: ignore[no-any-return]
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, AutoparError):
        raise found(value)
    raise RankFailedError(f"Rank 0 failed while planning: {kind}: {value}")
