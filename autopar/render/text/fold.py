"""Folds rows with dotted names, so that repeated blocks appear once.

A block is the part of a name below a number: ``model.layers.3`` holds ``self_attn.q_proj.weight``.  Rows
that are equal under the same numbers share one `Block`; a row that differs in some layers is listed
under the numbers of those layers.  Blocks may be nested.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

V = TypeVar("V", bound=Hashable)
_NUMBERED = re.compile(r"(?P<prefix>.*?(?:^|\.))(?P<number>\d+)(?P<rest>[./].*)")


@dataclass(frozen=True)
class Row(Generic[V]):
    """One name with its value; `count` identical rows."""

    name: str
    value: V
    count: int = 1


@dataclass(frozen=True)
class Block(Generic[V]):
    """Rows that are equal under each of the numbers: ``model.layers.0 ... 31``."""

    prefix: str
    numbers: tuple[int, ...]
    body: tuple[Row[V] | Block[V], ...]

    @property
    def name(self) -> str:
        """The prefix with all numbers."""
        return f"{self.prefix}{ranges(self.numbers)}"


@dataclass(frozen=True)
class Line(Generic[V]):
    """One line of a table; a block's heading has no value."""

    label: str
    count: int
    value: V | None


Item = Row[V] | Block[V]


def fold(rows: Iterable[tuple[str, V]]) -> tuple[Item[V], ...]:
    """Fold rows, in order of first appearance of names or prefixes."""
    plain: Counter[tuple[str, V]] = Counter()
    numbered: dict[str, dict[int, list[tuple[str, V]]]] = {}
    order: dict[tuple[str, V] | str, None] = {}
    for name, value in rows:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain[name, value] += 1
            order[name, value] = None
        else:
            copies = numbered.setdefault(match["prefix"], {})
            copies.setdefault(int(match["number"]), []).append((match["rest"], value))
            order[match["prefix"]] = None
    return tuple(
        item
        for key in order
        for item in (
            _blocks(key, numbered[key]) if isinstance(key, str) else [Row(*key, plain[key])]
        )
    )


def lines(items: Iterable[Item[V]], indent: int = 0) -> Iterator[Line[V]]:
    """Yield the items line by line, with bodies indented below their block's name."""
    for item in items:
        label = " " * indent + item.name.lstrip("./")
        if isinstance(item, Row):
            yield Line(label, item.count, item.value)
        else:
            yield Line(label, len(item.numbers), None)
            yield from lines(item.body, indent + 2)


def ranges(numbers: Iterable[int]) -> str:
    """Return ``0 ... 3, 7`` for 0, 1, 2, 3, 7."""
    runs = itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    spans = [[number for _, number in run] for _, run in runs]
    return ", ".join(f"{s[0]} ... {s[-1]}" if len(s) > 2 else ", ".join(map(str, s)) for s in spans)


def _blocks(prefix: str, copies: dict[int, list[tuple[str, V]]]) -> Iterator[Item[V]]:
    """Merge rows with equal numbers into one block; a single row of one number keeps its full name."""
    holders: dict[tuple[tuple[str, V], int], list[int]] = {}
    for number, rows in copies.items():
        seen: Counter[tuple[str, V]] = Counter()
        for row in rows:
            seen[row] += 1
            holders.setdefault((row, seen[row]), []).append(number)
    bodies: dict[tuple[int, ...], list[tuple[str, V]]] = {}
    for (row, _), numbers in holders.items():
        bodies.setdefault(tuple(numbers), []).append(row)
    for among, rows in bodies.items():
        body = fold(rows)
        if len(among) > 1 or len(body) > 1:
            yield Block(prefix, among, body)
        else:
            yield _under(f"{prefix}{among[0]}", body[0])


def _under(head: str, item: Item[V]) -> Item[V]:
    if isinstance(item, Row):
        return replace(item, name=head + item.name)
    return replace(item, prefix=head + item.prefix)
