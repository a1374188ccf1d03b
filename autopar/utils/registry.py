"""Registries of named values that users may extend: schedules, solvers, collectives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from autopar.errors import InputError
from autopar.utils.suggest import near

Value = TypeVar("Value")


class Registry(Mapping[str, Value]):
    """Values by name, in the order in which they were added."""

    def __init__(self, kind: str, known: Mapping[str, Value]) -> None:
        """`kind` is the noun for a value in messages, such as ``schedule``."""
        self.kind, self._known, self._own = kind, dict(known), frozenset(known)

    def add(self, name: str, value: Value) -> Value:
        """Add a value, or replace one that was added under the same name; return it.

        Raises `InputError` if the name belongs to a built-in value, or if the value has a fault.
        """
        if name in self._own:
            raise InputError(f"autopar has a {self.kind} called {name!r}: choose another name.")
        fault = self.fault(name, value)
        if fault:
            raise InputError(f"The {self.kind} {name!r} {fault}.")
        self._known[name] = value
        return value

    def fault(self, name: str, value: Value) -> str:
        """Return why a value cannot be added, or ""; a registry overrides it."""
        return ""

    def named(self, name: str) -> Value:
        """Return the value; raise `InputError` with the known names if there is none."""
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
