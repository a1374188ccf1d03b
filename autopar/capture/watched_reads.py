"""Tells cheaply whether anything that a walk has read was replaced since.

A walk over thousands of values takes milliseconds, and nearly always nothing has changed.  So each walk
records where it read every value, and the next step compares identities there, in loops that run in C.
A container that changed while the values stayed equal costs one more walk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from operator import getitem, is_
from types import MappingProxyType
from typing import Any

import torch

from autopar.capture import containers

MISSING = object()
Namespace = dict[str, Any] | MappingProxyType[str, Any]


class WatchedReads:
    """The places that one walk has read.  It keeps their values alive, so that no id is used again.

    `is_complete`: whether `unchanged` can tell.  It cannot for inference tensors, which have no version,
    nor for objects behind weak references, which must not be kept alive.
    """

    def __init__(self) -> None:
        self._spaces: dict[int, Namespace] = {}
        self._sizes: list[int] = []
        self._newest: list[Any] = []
        self._items = _Reads()
        self._attributes = _Reads()
        self._contents: list[tuple[Any, list[Any]]] = []
        self._results: list[tuple[Callable[[], Any], Any]] = []
        self._tensors: list[tuple[torch.Tensor, int | None, torch.Size]] = []
        self.is_complete = True

    def space(self, held: Namespace, keys: Iterable[str]) -> None:
        """Record that code read these keys of a namespace, and none that are added later."""
        if id(held) not in self._spaces:
            self._spaces[id(held)] = held
            self._sizes.append(len(held))
            self._newest.append(_newest(held))
        for key in keys:
            self._items.add(held, key, held[key])

    def attributes(self, owner: Any, *names: str) -> None:
        """Record attributes that the owner has."""
        for name in names:
            self._attributes.add(owner, name, getattr(owner, name))

    def contents(self, value: Any) -> None:
        """Record all items of one of Python's containers."""
        if isinstance(value, tuple | frozenset):
            return
        if type(value) is dict and all(type(key) is str for key in value):
            self.space(value, value)
        else:
            self._contents.append((value, _flat(value)))

    def result(self, read: Callable[[], Any], value: Any) -> None:
        """Record that `read`, which changes nothing, returned a value equal to this."""
        self._results.append((read, value))

    def shape(self, value: torch.Tensor) -> None:
        """Record the shape of a tensor."""
        self._tensors.append((value, None, value.shape))

    def tensor(self, value: torch.Tensor) -> None:
        """Record the values of a tensor."""
        if value.is_inference():
            self.is_complete = False
        else:
            self._tensors.append((value, value._version, value.shape))

    def unchanged(self) -> bool:
        """Whether a walk would read the same values again."""
        try:
            return (
                self._spaces_are_same()
                and self._items.are_same(getitem)
                and self._attributes.are_same(getattr)
                and all(_is_same(value, kept) for value, kept in self._contents)
                and all(read() == value for read, value in self._results)
                and all(
                    value.shape == shape and (version is None or value._version == version)
                    for value, version, shape in self._tensors
                )
            )
        except (AttributeError, KeyError, ReferenceError, ValueError):  # deleted
            return False

    def _spaces_are_same(self) -> bool:
        held = self._spaces.values()
        newest: Iterable[Any] = map(next, map(reversed, held), repeat(None))
        return list(map(len, held)) == self._sizes and all(map(is_, newest, self._newest))


class _Reads:
    """Owners, the names of what was read from them, and the values."""

    def __init__(self) -> None:
        self._owners: list[Any] = []
        self._names: list[str] = []
        self._values: list[Any] = []

    def add(self, owner: Any, name: str, value: Any) -> None:
        self._owners.append(owner)
        self._names.append(name)
        self._values.append(value)

    def are_same(self, read: Callable[[Any, str], Any]) -> bool:
        return all(map(is_, map(read, self._owners, self._names), self._values))


def _newest(held: Namespace) -> Any:
    """Return the key that was added last; adding another changes it, also after a deletion."""
    return next(reversed(held), None)


def _flat(value: Any) -> list[Any]:
    if containers.is_mapping(value):
        return [each for pair in containers.items(value) for each in pair]
    return containers.members(value)


def _is_same(value: Any, kept: list[Any]) -> bool:
    now = _flat(value)
    return len(now) == len(kept) and all(map(is_, now, kept))


__all__ = ["MISSING", "WatchedReads"]
