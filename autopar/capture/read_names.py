"""Names that code can read: of attributes, globals and methods."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

ALL = frozenset(
    {"__dict__", "vars", "asdict", "astuple", "attrgetter", "__getstate__", "fields", "__slots__"}
)
"""Names by which code reads attributes that it does not name."""
BY_TEXT = frozenset({"getattr", "hasattr", "__getattribute__", "__getattr__"})
"""Names by which code reads an attribute whose name it may put together."""


class Names:
    """Names, and beginnings and ends of names that code puts together: ``getattr(x, f"scale_{n}")``."""

    def __init__(self, names: Iterable[str] = (), ends: Iterable[str] = ()) -> None:
        self.names, self.ends = frozenset(names), frozenset(ends)
        self.reads_all = bool(self.names & ALL)
        self._known: dict[str, bool] = {}

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        if name not in self._known:
            self._known[name] = name in self.names or any(
                name.startswith(end) or name.endswith(end) for end in self.ends
            )
        return self._known[name]

    def __or__(self, other: Names) -> Names:
        return Names(self.names | other.names, self.ends | other.ends)

    @classmethod
    def union(cls, all_of: Iterable[Names]) -> Names:
        """Return the names of all of these."""
        each = list(all_of)
        return cls(
            frozenset[str]().union(*(names.names for names in each)),
            frozenset[str]().union(*(names.ends for names in each)),
        )

    def __ge__(self, other: Names) -> bool:
        return self.names >= other.names and self.ends >= other.ends


@lru_cache(maxsize=50_000)
def names_in(code: CodeType) -> Names:
    """Return the names in code and its inner functions.

    Strings count as names, which `getattr` may use; beside a `getattr` they also count as ends of names.
    """
    texts = frozenset(_texts(code.co_consts))
    parts = (text for text in texts if text.replace("_", "a").isalnum())
    ends = parts if BY_TEXT.intersection(code.co_names) else ()
    found = Names(texts.union(code.co_names), ends)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            found |= names_in(const)
    return found


def _texts(constants: Iterable[Any]) -> Iterator[str]:
    for const in constants:
        if isinstance(const, str):
            yield const
        elif isinstance(const, tuple | frozenset):
            yield from _texts(const)


def names_from_forward(kind: type) -> Names:
    """Return the names in the forward of a class and in the methods that it names."""
    found, waiting, seen = Names(), {"forward"}, set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for base in kind.__mro__:  # `super()` reaches all of them
            code = _code(vars(base).get(name))
            if code is not None:
                found |= names_in(code)
                waiting |= found.names - seen
    return found


def _code(value: Any) -> CodeType | None:
    if isinstance(value, property):
        value = value.fget
    value = inspect.unwrap(getattr(value, "__func__", value))
    return value.__code__ if isinstance(value, FunctionType) else None


__all__ = ["Names", "names_from_forward", "names_in"]
