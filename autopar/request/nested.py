"""Flattens and rebuilds the nested containers of a batch.

Mappings, sequences, dataclasses and types registered with ``torch.utils._pytree`` are flattened to any
depth.  The key of a leaf joins plain words and indices by dots, ``x.0.mask``; any other part is in
brackets, ``x['a.b']``, so that keys are unique.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from autopar.errors import InputError
from autopar.request import _torch

PLAIN = re.compile(r"[^\W\d][\w-]*|\w[\w]*[^\W\d][\w-]*")
"""Words that need no brackets: they have a letter, and no character that separates parts of a key."""
Items = list[tuple[Any, Any]]


def top(key: Any) -> str:
    """Return the key of a keyword argument."""
    return key if isinstance(key, str) and PLAIN.fullmatch(key) else f"[{key!r}]"


def below(key: str, part: Any) -> str:
    """Return the key of a part of the container with the key `key`."""
    plain = (type(part) is int and part >= 0) or (
        isinstance(part, str) and bool(PLAIN.fullmatch(part))
    )
    return f"{key}.{part}" if plain else f"{key}[{part!r}]"


def is_dataclass_value(value: Any) -> bool:
    """Whether it is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def items_of(value: Any) -> Items | None:
    """Return a container's (part, item) pairs; None if the value is not a container."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return list(enumerate(value))
    if (registered := _torch.opened(value)) is not None:
        return list(enumerate(registered[0]))
    if is_dataclass_value(value):
        fields = dataclasses.fields(value)
        return [(f.name, getattr(value, f.name)) for f in fields if hasattr(value, f.name)]
    return None


def leaves_of(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield (key, leaf) for all leaves of nested containers."""
    items = None if isinstance(value, torch.Tensor) else items_of(value)
    if items is None:
        yield key, value
        return
    for part, item in items:
        yield from leaves_of(item, below(key, part) if key else top(part))


def mapped(value: Any, key: str, change: Callable[[Any, str], Any]) -> Any:
    """Return the same nested containers with `change(leaf, key)` in place of every leaf.

    A container in which nothing changes is returned itself.  Raise `InputError` for a container that
    cannot be rebuilt.
    """
    items = None if isinstance(value, torch.Tensor) else items_of(value)
    if items is None:
        return change(value, key)
    made = [mapped(item, below(key, p) if key else top(p), change) for p, item in items]
    if all(new is old for new, (_, old) in zip(made, items, strict=True)):
        return value
    try:
        return _rebuilt(value, [part for part, _ in items], made)
    except Exception as error:
        raise InputError(
            f"{key!r} is a {type(value).__name__}, which cannot be rebuilt with other tensors "
            f"({type(error).__name__}: {error}). Register how to do that with "
            "torch.utils._pytree.register_pytree_node, or pass its tensors as a dict."
        ) from error


def _rebuilt(value: Any, parts: list[Any], made: list[Any]) -> Any:
    """Rebuild a container with other items."""
    kind = type(value)
    if kind in (dict, list, tuple):
        return dict(zip(parts, made, strict=True)) if kind is dict else kind(made)
    if isinstance(value, (Mapping, list)):
        return _refilled(value, parts, made)
    if isinstance(value, tuple):
        return kind(*made) if hasattr(value, "_fields") else kind(made)
    if (registered := _torch.opened(value)) is not None:
        return registered[1](made)
    new = copy.copy(value)
    for name, item in zip(parts, made, strict=True):
        object.__setattr__(new, name, item)
    return new


def _refilled(value: Any, parts: list[Any], made: list[Any]) -> Any:
    """Return a shallow copy with other items, which keeps the object's other attributes."""
    new = copy.copy(value)
    if isinstance(new, UserDict):
        new.data = dict(new.data)
    if isinstance(new, list):
        new[:] = made
        return new
    for part, item in zip(parts, made, strict=True):
        new[part] = item
    return new
