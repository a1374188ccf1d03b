"""Makes actions collective: an action succeeds on all ranks, or raises on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from autopar.errors import AutoparError, CheckpointError

T = TypeVar("T")


def rank() -> int:
    """Return this process's rank; 0 without `torch.distributed`."""
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """Return the number of processes; 1 without `torch.distributed`."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gathered(value: Any) -> list[Any]:
    """Return the values of all ranks, by rank.  Collective."""
    if size() == 1:
        return [value]
    found: list[Any] = [None] * size()
    dist.all_gather_object(found, value)
    return found


def on_all(action: Callable[[], T], what: str) -> T:
    """Run an action on every rank and return its result; if it raises on one rank, all raise."""
    failed: BaseException | None = None
    try:
        result = action()
    # DCP's exception, which carries those of the ranks, does not derive from Exception.
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        failed = error
    words = gathered(None if failed is None else error_text(failed))
    if failed is None:
        number = next((n for n, each in enumerate(words) if each is not None), None)
        if number is None:
            return result
        raise CheckpointError(f"{what}: rank {number} failed: {words[number]}")
    if isinstance(failed, AutoparError) and not isinstance(failed, CheckpointError):
        raise failed
    raise CheckpointError(f"{what}: {error_text(failed)}") from failed


def on_first(action: Callable[[], T], what: str) -> T:
    """Run an action on rank 0 and return its result on all ranks; if it raises, all raise."""
    made = on_all(lambda: action() if rank() == 0 else None, what)
    return gathered(made)[0]  # type: ignore[no-any-return]


def error_text(error: BaseException) -> str:
    """Return an error as one line: an OSError's reason and file, or the first of the ranks' errors."""
    failures = getattr(error, "failures", None) or {}
    inner = next((failure[0] for failure in failures.values()), error)
    if isinstance(inner, OSError):
        reason = inner.strerror or str(inner)
        return f"{reason} ({inner.filename})" if inner.filename else reason
    text = str(inner).strip()
    if isinstance(inner, CheckpointError):
        return text
    return text.splitlines()[0] if text else type(inner).__name__
