"""Formats arguments in messages, as Python arguments or as command line flags.

A message uses ``argument("stages", [1, 3])`` to name an argument.  The result is
``pipeline=[1, 3]``, and ``argument("cuts", ["a"])`` gives
``pipeline=Pipeline(cuts=['a'])``; within `worded` it is in the caller's syntax, such as
``--stages 1+3``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

PIPELINE = "pipeline"
"""Name of the argument that also accepts the stages alone."""
FIELDS = {
    "schedule": "Pipeline", "microbatches": "Pipeline", "cuts": "Pipeline",
    "asynchronous": "Pipeline", "layers": "Pipeline", "virtual": "Pipeline",
    "local": "Batches", "outputs": "Batches", "replan": "Batches",
    "database": "Planning", "allow_undivided": "Planning", "source": "Planning", "init": "Weights",
}  # fmt: skip
"""Class in `autopar.request` that holds an option, by the option's name."""


@dataclass(frozen=True)
class Wording:
    """The syntax of arguments in messages; this base class formats Python calls."""

    def named(self, name: str) -> str:
        """Format an argument without a value."""
        return f"{PIPELINE if name == 'stages' else name}="

    def given(self, name: str, value: object) -> str:
        """Format an argument with a value."""
        if name == "stages":
            return f"{PIPELINE}={value!r}"
        kind = FIELDS.get(name)
        return f"{kind.lower()}={kind}({name}={value!r})" if kind else f"{name}={value!r}"

    def quoted(self, value: object) -> str:
        """Format a value."""
        return repr(value)

    def of_python(self, text: str) -> str:
        """Return a text that applies only to Python callers; subclasses return an empty string."""
        return text


PYTHON = Wording()
_SPOKEN: ContextVar[Wording] = ContextVar("wording", default=PYTHON)


@contextmanager
def worded(wording: Wording) -> Iterator[None]:
    """Within the context, messages use another syntax."""
    token = _SPOKEN.set(wording)
    try:
        yield
    finally:
        _SPOKEN.reset(token)


def argument(name: str, *value: object) -> str:
    """Format an argument: ``preset=`` or, with a value, ``preset='fsdp'``."""
    spoken = _SPOKEN.get()
    return spoken.given(name, value[0]) if value else spoken.named(name)


def quoted(value: object) -> str:
    """Format a value as it has to be passed, such as ``'float32'``."""
    return _SPOKEN.get().quoted(value)


def of_python(text: str) -> str:
    """Return the text if messages are in Python syntax, otherwise an empty string."""
    return _SPOKEN.get().of_python(text)
