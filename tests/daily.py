"""Which of many cases run every day; the others, or one of so many, run in the slow set."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def daily(every: Iterable[Any], some: Collection[Any], part: int = 1) -> list[Any]:
    """Cases of a parametrisation: those that are among `some`, and each `part`-th other, marked slow.

    Where `part` is more than one, a benchmark runs them all.
    """
    others = [case for case in every if case not in some][::part]
    return [
        case if case in some else _slow(case) for case in every if case in some or case in others
    ]


def rotated(names: Iterable[Any], ways: Sequence[Any], part: int = 1) -> list[Any]:
    """Each name in two ways, in turn: every day each `part`-th in the first; all others marked slow."""
    cases: list[Any] = []
    for turn, name in enumerate(names):
        for other in range(min(2, len(ways))):
            way = ways[(turn // part + other) % len(ways)]
            case = (name, *(way if isinstance(way, tuple) else (way,)))
            cases.append(case if other == 0 and turn % part == 0 else _slow(case))
    return cases


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) and not hasattr(case, "_fields") else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
