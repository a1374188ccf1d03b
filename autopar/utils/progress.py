"""Long work that somebody watches: a bar on a terminal, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Watch(Protocol):
    """Passes things on as they are made; told how many come (None: nobody knows), and what they are."""

    def __call__(self, every: Iterable[T], total: int | None, what: str) -> Iterator[T]:
        """The same things."""


def unwatched(every: Iterable[T], total: int | None, what: str) -> Iterator[T]:
    """Nobody looks."""
    yield from every


def alone(make: Callable[[], T], watch: Watch, what: str) -> T:
    """One thing that takes long, while somebody watches."""
    (made,) = watch((call() for call in (make,)), None, what)
    return made
