"""Rows of repeated blocks as one row: ``transformer.h.*.attn.c_attn.weight  x12``."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V", bound=Hashable)
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")


@dataclass(frozen=True)
class Folded(Generic[V]):
    """Names that are equal up to their numbers, with equal values."""

    name: str
    value: V
    count: int


def fold(rows: Iterable[tuple[str, V]]) -> tuple[Folded[V], ...]:
    """Group rows by pattern and value, in the order of first appearance."""
    groups: dict[tuple[str, V], list[str]] = {}
    for name, value in rows:
        groups.setdefault((_NUMBER.sub("*", name), value), []).append(name)
    return tuple(
        Folded(pattern if len(names) > 1 else names[0], value, len(names))
        for (pattern, value), names in groups.items()
    )
