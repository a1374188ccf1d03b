"""Reads and restores containers by the methods of Python's own types.

A subclass may override these: transformers' `ACT2FN` makes a module of every class that is read from it,
and a cache counts its reads.  Looking at a container changes nothing, and runs no code of the user.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any

KINDS: tuple[type, ...] = (OrderedDict, dict, deque, list, tuple, set, frozenset)
"""Python's own containers; a type precedes its bases."""


def kind_of(value: Any) -> Any:
    """Return Python's own type of a container; None for what is none, as a proxy of one."""
    return next((kind for kind in KINDS if issubclass(type(value), kind)), None)


def is_mapping(value: Any) -> bool:
    """Whether a value is a dict."""
    return issubclass(type(value), dict)


def length(value: Any) -> int:
    """Return the number of items of a container."""
    return int(kind_of(value).__len__(value))


def items(value: Any) -> list[tuple[Any, Any]]:
    """Return the keys and values of a dict."""
    return list(kind_of(value).items(value))


def members(value: Any) -> list[Any]:
    """Return the items of a list, a tuple, a deque or a set."""
    return list(kind_of(value).__iter__(value))


def restore_items(value: Any, before: Mapping[Any, Any]) -> None:
    """Give a dict these keys and values, in this order, if it has others."""
    kind = kind_of(value)
    if _are_same(value, before):
        return
    kind.clear(value)
    for key, item in before.items():
        kind.__setitem__(value, key, item)


def restore_members(value: Any, before: Iterable[Any]) -> None:
    """Give a list, a deque or a set these items if it has others."""
    kind, now, wanted = kind_of(value), members(value), list(before)
    if len(now) == len(wanted) and all(a is b for a, b in zip(now, wanted, strict=True)):
        return
    kind.clear(value)
    (kind.update if kind is set else kind.extend)(value, wanted)


def _are_same(value: Any, before: Mapping[Any, Any]) -> bool:
    now = items(value)
    return len(now) == len(before) and all(
        a is b and x is y for (a, x), (b, y) in zip(now, before.items(), strict=True)
    )
