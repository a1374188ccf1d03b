"""Refuses changes of tensors and arrays in containers and objects that hang on the model's modules.

A captured graph holds their values.  Only attributes that the code of a forward names are watched: users
keep averages, histories and the like on a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn

from autopar.runtime.holders import INTERNAL
from autopar.runtime.read_names import names_read

DEPTH = 4
"""Depth to which containers and objects are searched."""
MOST = 1_000
"""Maximum number of items of a container that is searched."""
LARGEST = 1 << 16
"""Maximum size in bytes of an array whose values are compared."""


class HeldConstants:
    """The tensors and arrays inside attributes of all modules of a tree."""

    def __init__(self, root: nn.Module) -> None:
        own = (*root.parameters(), *root.buffers())
        self._own = frozenset(map(id, own))
        names = names_read(root)
        self._attributes = [
            (f"{path}.{key}".lstrip("."), vars(module), key)
            for path, module in root.named_modules()
            for key, value in vars(module).items()
            if key in names and key not in INTERNAL and not isinstance(value, torch.Tensor)
        ]
        self._before = dict(self._found())

    def changed(self) -> str | None:
        """Return the place of the first value that was replaced or written to; None if there is none."""
        if not self._before:
            return None
        now = dict(self._found())
        for place, (value, looks) in self._before.items():
            if place in now and (now[place][0] is not value or now[place][1] != looks):
                return place
        return None

    def _found(self) -> Iterator[tuple[str, tuple[Any, Any]]]:
        seen: set[int] = set()
        for place, held, key in self._attributes:
            yield from self._inside(place, held.get(key), seen, DEPTH)

    def _inside(
        self, place: str, value: Any, seen: set[int], depth: int
    ) -> Iterator[tuple[str, tuple[Any, Any]]]:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._own and not value.is_inference():
                yield place, (value, value._version)
            return
        if hasattr(value, "__array_interface__") and hasattr(value, "tobytes"):
            small = value.nbytes <= LARGEST and value.dtype != object
            yield place, (value, value.tobytes() if small else None)
            return
        if id(value) in seen or not depth or isinstance(value, nn.Module | type | ModuleType):
            return
        seen.add(id(value))
        for key, item in _items(value):
            yield from self._inside(f"{place}{key}", item, seen, depth - 1)


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", v) for key, v in value.items()] if len(value) <= MOST else []
    if isinstance(value, list | tuple):
        return [(f"[{i}]", v) for i, v in enumerate(value)] if len(value) <= MOST else []
    if hasattr(value, "__dict__") and not callable(value):
        return [(f".{key}", item) for key, item in list(vars(value).items())]
    return []
