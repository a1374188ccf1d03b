"""Interface for progress reports of long work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Watch(Protocol):
    """Yields items unchanged and reports progress.

    `total` is the number of items (None if unknown), `what` describes them.
    """

    def __call__(self, every: Iterable[T], total: int | None, what: str) -> Iterator[T]:
        """Yield the same items."""


def unwatched(every: Iterable[T], total: int | None, what: str) -> Iterator[T]:
    """Yield the items without reporting."""
    yield from every


def alone(make: Callable[[], T], watch: Watch, what: str) -> T:
    """Make one value, and report progress for it."""
    (made,) = watch((call() for call in (make,)), None, what)
    return made
