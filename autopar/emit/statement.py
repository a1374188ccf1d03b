"""The emitter's own small program: statements over values, before they have names."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.ir.graph import Origin
from autopar.ir.placement import Sharding


@dataclass(frozen=True, slots=True)
class Value:
    """One form of one tensor."""

    tensor: str
    form: Sharding


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter or buffer, by the user's name."""

    path: str


Part = str | Value | Weight
"""An expression is a sequence of parts; strings are Python text."""


@dataclass(frozen=True, slots=True)
class Statement:
    """``targets = parts`` with the comment that stands behind it."""

    targets: tuple[Value, ...]
    parts: tuple[Part, ...]
    comment: str
    origin: Origin
    frees: tuple[Value, ...] = ()
    """What is deleted behind it."""
    is_list: bool = False
    """Whether the expression is a list of tensors, though there be one target."""

    @property
    def reads(self) -> tuple[Value, ...]:
        """The values it uses, in order."""
        return tuple(part for part in self.parts if isinstance(part, Value))
