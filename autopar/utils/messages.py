"""How messages name what a person may pass: as Python's arguments, or as the command line's flags.

A message has ``argument("stages", [1, 3])`` where it speaks of an argument.  That reads
``stages=[1, 3]``; within `worded` it reads as the caller spells it, such as ``--stages 1+3``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """Python's own: what `autopar.parallelize` and its like are called with."""

    def named(self, name: str) -> str:
        """An argument, whatever it is."""
        return f"{name}="

    def given(self, name: str, value: object) -> str:
        """An argument as somebody wrote it, or might."""
        return f"{name}={value!r}"

    def quoted(self, value: object) -> str:
        """What might be passed."""
        return repr(value)

    def of_python(self, text: str) -> str:
        """What can only be written in Python."""
        return text


PYTHON = Wording()
_SPOKEN: ContextVar[Wording] = ContextVar("wording", default=PYTHON)


@contextmanager
def worded(wording: Wording) -> Iterator[None]:
    """Within, messages are for somebody who writes otherwise."""
    token = _SPOKEN.set(wording)
    try:
        yield
    finally:
        _SPOKEN.reset(token)


def argument(name: str, *value: object) -> str:
    """``stages=`` or, of a value, ``stages=2``."""
    spoken = _SPOKEN.get()
    return spoken.given(name, value[0]) if value else spoken.named(name)


def quoted(value: object) -> str:
    """``'float32'``, as it would have to be passed."""
    return _SPOKEN.get().quoted(value)


def of_python(text: str) -> str:
    """The text where the reader can do what it says, or nothing."""
    return _SPOKEN.get().of_python(text)
