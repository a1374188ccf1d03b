"""What one rank finds, all ranks know: an action succeeds on all of them, or raises on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from autopar.errors import AutoparError, CheckpointError

T = TypeVar("T")


def rank() -> int:
    """This process' number; 0 where there is one."""
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gathered(value: Any) -> list[Any]:
    """What every rank has, by rank."""
    if size() == 1:
        return [value]
    found: list[Any] = [None] * size()
    dist.all_gather_object(found, value)
    return found


def on_all(action: Callable[[], T], what: str) -> T:
    """What the action gives on this rank; where it raises on one rank, every rank raises."""
    failed: BaseException | None = None
    try:
        result = action()
    # DCP's own exception, which carries those of the ranks, is no Exception.
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        failed = error
    words = gathered(None if failed is None else said(failed))
    if failed is None:
        number = next((n for n, each in enumerate(words) if each is not None), None)
        if number is None:
            return result
        raise CheckpointError(f"{what}: rank {number} failed: {words[number]}")
    if isinstance(failed, AutoparError) and not isinstance(failed, CheckpointError):
        raise failed
    raise CheckpointError(f"{what}: {said(failed)}") from failed


def on_first(action: Callable[[], T], what: str) -> T:
    """What the action gives on rank 0."""
    made = on_all(lambda: action() if rank() == 0 else None, what)
    return gathered(made)[0]  # type: ignore[no-any-return]


def said(error: BaseException) -> str:
    """One line: of a system's refusal its reason and file, of several ranks' errors the first."""
    failures = getattr(error, "failures", None) or {}
    inner = next((failure[0] for failure in failures.values()), error)
    if isinstance(inner, OSError):
        reason = inner.strerror or str(inner)
        return f"{reason} ({inner.filename})" if inner.filename else reason
    text = str(inner).strip()
    if isinstance(inner, CheckpointError):
        return text
    return text.splitlines()[0] if text else type(inner).__name__
