"""The emitter's intermediate representation: statements over values that have no names yet."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.ir.graph import Origin
from autopar.ir.placement import Sharding


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in one of its shardings."""

    tensor: str
    form: Sharding


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter or buffer, by its name in the user's model."""

    path: str


Part = str | Value | Weight
"""An expression is a sequence of parts; strings are Python text."""


@dataclass(frozen=True, slots=True)
class Statement:
    """``targets = parts`` with a trailing comment, or with a line and a comment for each target."""

    targets: tuple[Value, ...]
    parts: tuple[Part, ...]
    comment: str
    origin: Origin
    frees: tuple[Value, ...] = ()
    """Values that are deleted after the statement."""
    gather: tuple[Part, ...] = ()
    """The call that starts to gather the weights which the statement converts."""
    is_list: bool = False
    """Whether the expression returns a list of tensors, even with a single target."""

    @property
    def reads(self) -> tuple[Value, ...]:
        """The values that the expression uses, in order."""
        return tuple(part for part in self.parts if isinstance(part, Value))
