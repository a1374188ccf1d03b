"""Slots are read and restored by their descriptors, never by methods that a user's class overrides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autopar.capture.python_state import PythonState


class Lazy:
    __slots__ = ("calls", "late")

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        self.late = 1
        return self.late


@dataclass(frozen=True, slots=True)
class Frozen:
    rate: int


class Private:
    __slots__ = ("__hidden",)

    def __init__(self) -> None:
        self.__hidden = 1


def _found(value: Any) -> PythonState:
    found = PythonState()
    found._walk("it", value)
    return found


def test_an_unset_slot_is_not_filled() -> None:
    lazy = Lazy()
    _found(lazy)
    assert lazy.calls == []


def test_a_frozen_object_is_restored() -> None:
    frozen = Frozen(1)
    found = _found(frozen)
    object.__setattr__(frozen, "rate", 2)
    found.put_back()
    assert frozen.rate == 1


def test_a_private_slot_is_seen() -> None:
    private = Private()
    before = _found(private)
    private._Private__hidden = 2  # type: ignore[attr-defined]
    assert before.differs(_found(private)) == ["it._Private__hidden"]
