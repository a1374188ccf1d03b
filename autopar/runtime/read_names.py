"""Names that the code of a model's forwards can read: of attributes, globals and methods."""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType

from torch import nn


def names_read(root: nn.Module) -> frozenset[str]:
    """Return the names in the forwards of all modules' classes, and in the methods that those name."""
    found: set[str] = set()
    for kind in dict.fromkeys(type(module) for module in root.modules()):
        waiting, seen = {"forward"}, set()
        while waiting:
            name = waiting.pop()
            seen.add(name)
            for base in kind.__mro__:  # `super()` reaches all of them
                code = _code(vars(base).get(name))
                waiting |= (set() if code is None else _names(code)) - seen
        found |= seen
    return frozenset(found)


def _code(value: object) -> CodeType | None:
    if isinstance(value, property):
        value = value.fget
    value = inspect.unwrap(getattr(value, "__func__", value))  # type: ignore[arg-type]
    return value.__code__ if isinstance(value, FunctionType) else None


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    return found.union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))
