"""How messages name what a person may pass: as Python's arguments, or as the command line's flags.

A message has ``argument("stages", [1, 3])`` where it speaks of an argument.  That reads
``pipeline=[1, 3]``, and ``argument("cuts", ["a"])`` reads
``pipeline=Pipeline(cuts=['a'])``; within `worded` it reads as the caller spells it, such as
``--stages 1+3``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

PIPELINE = "pipeline"
"""What the number of stages may be passed as, alone."""
FIELDS = {
    "schedule": "Pipeline", "microbatches": "Pipeline", "cuts": "Pipeline",
    "asynchronous": "Pipeline", "local": "Batches", "outputs": "Batches", "replan": "Batches",
    "database": "Planning", "allow_undivided": "Planning", "source": "Planning", "init": "Weights",
}  # fmt: skip
"""Which option value of `autopar.request` has a field of this name."""


@dataclass(frozen=True)
class Wording:
    """Python's own: what `autopar.parallelize` and its like are called with."""

    def named(self, name: str) -> str:
        """An argument, whatever it is."""
        return f"{PIPELINE if name == 'stages' else name}="

    def given(self, name: str, value: object) -> str:
        """An argument as somebody wrote it, or might."""
        if name == "stages":
            return f"{PIPELINE}={value!r}"
        kind = FIELDS.get(name)
        return f"{kind.lower()}={kind}({name}={value!r})" if kind else f"{name}={value!r}"

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
    """``preset=`` or, of a value, ``preset='fsdp'``."""
    spoken = _SPOKEN.get()
    return spoken.given(name, value[0]) if value else spoken.named(name)


def quoted(value: object) -> str:
    """``'float32'``, as it would have to be passed."""
    return _SPOKEN.get().quoted(value)


def of_python(text: str) -> str:
    """The text where the reader can do what it says, or nothing."""
    return _SPOKEN.get().of_python(text)
