"""Tells whether large containers have changed, by a comparison with a copy that runs in C."""

from __future__ import annotations

from itertools import count
from typing import Any

from autopar.capture import containers

LARGEST = 50_000
"""Maximum number of items of a container that is compared."""


class LargeContainers:
    """Copies of lists, dicts and sets; of items that are containers or tensors the identity counts."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Any, int]] = {}
        """Container, its copy, and the number of its present contents, by id."""
        self._used: set[int] = set()
        self._numbers = count()

    def contents(self, value: Any) -> int:
        """Return a number that changes with the container's items."""
        if isinstance(value, tuple | frozenset) or containers.length(value) > LARGEST:
            return 0
        self._used.add(id(value))
        known = self._copies.get(id(value))
        if known is None or known[0] is not value or not _equal(value, known[1]):
            known = self._copies[id(value)] = value, _copied(value), next(self._numbers)
        return known[2]

    def drop_unused(self) -> None:
        """Forget the containers that were not compared since the last call."""
        for key in self._copies.keys() - self._used:
            del self._copies[key]
        self._used.clear()


def _copied(value: Any) -> Any:
    kind = containers.kind_of(value)
    return kind(
        containers.items(value) if containers.is_mapping(value) else containers.members(value)
    )


def _equal(value: Any, copy: Any) -> bool:
    kind: Any = type(copy)  # whose comparison a subclass may have replaced
    try:
        return bool(kind.__eq__(value, copy))
    except (RuntimeError, ValueError):  # tensors or arrays compare element by element
        return False


__all__ = ["LargeContainers"]
