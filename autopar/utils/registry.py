"""Named things that people may add to: schedules, solvers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from autopar.errors import InputError
from autopar.utils.suggest import near

Value = TypeVar("Value")


class Registry(Mapping[str, Value]):
    """What is known by name, in the order in which it was added."""

    def __init__(self, kind: str, known: Mapping[str, Value]) -> None:
        """`kind` is the word for one of them, such as ``schedule``."""
        self.kind, self._known, self._own = kind, dict(known), frozenset(known)

    def add(self, name: str, value: Value) -> Value:
        """Make a value known, or put it in place of the one that was added under its name.

        Raises `InputError` where autopar's own has the name.
        """
        if name in self._own:
            raise InputError(f"autopar has a {self.kind} called {name!r}: choose another name.")
        self._known[name] = value
        return value

    def named(self, name: str) -> Value:
        """The value; `InputError` says which there are."""
        if name not in self._known:
            close = near(name, self)
            there = f".{close} There are" if close else "; there are"
            raise InputError(f"No {self.kind} is called {name!r}{there} {', '.join(self)}.")
        return self._known[name]

    def __getitem__(self, name: str) -> Value:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
