"""Tables of equal content, looked at together: a model's equal layers ask the same of each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Content = TypeVar("Content")
Numbers = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class TableGroup(Generic[Content]):
    """A content, the numbers of the tables that have it, and their scopes, [dims, tables]."""

    content: Content
    numbers: Numbers
    scopes: Numbers

    @property
    def where(self) -> tuple[Numbers, ...]:
        """The variables of each dim."""
        return tuple(self.scopes)


def grouped(
    tables: Iterable[tuple[Hashable, Content, tuple[int, ...]]],
) -> tuple[TableGroup[Content], ...]:
    """By key: the content that came with it first, and all scopes; tables are numbered as they come."""
    numbers: defaultdict[Hashable, list[int]] = defaultdict(list)
    scopes: defaultdict[Hashable, list[tuple[int, ...]]] = defaultdict(list)
    contents: dict[Hashable, Content] = {}
    for number, (key, content, scope) in enumerate(tables):
        contents.setdefault(key, content)
        numbers[key].append(number)
        scopes[key].append(scope)
    return tuple(
        TableGroup(content, np.array(numbers[key]), _columns(scopes[key]))
        for key, content in contents.items()
    )


def merged(
    parts: Iterable[tuple[Hashable, TableGroup[Content]]],
) -> tuple[TableGroup[Content], ...]:
    """Parts with equal keys as one, in the order of their first tables."""
    by_key: defaultdict[Hashable, list[TableGroup[Content]]] = defaultdict(list)
    for key, part in parts:
        by_key[key].append(part)
    made = [same[0] if len(same) == 1 else _joined(same) for same in by_key.values()]
    return tuple(sorted(made, key=lambda alike: int(alike.numbers[0])))


def _joined(parts: Sequence[TableGroup[Content]]) -> TableGroup[Content]:
    numbers = np.concatenate([part.numbers for part in parts])
    order = np.argsort(numbers)
    scopes = np.concatenate([part.scopes for part in parts], axis=1)
    return TableGroup(parts[0].content, numbers[order], scopes[:, order])


def _columns(scopes: Sequence[tuple[int, ...]]) -> Numbers:
    return np.array(scopes, dtype=np.intp).reshape(len(scopes), -1).T
