"""Which names somebody may have meant who wrote one that there is not."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from autopar.errors import InputError

EXAMPLES = 5
NEAR = 0.5
"""As alike as a slip of the hand leaves a name, or the end of one."""


def known(kind: str, name: str, names: Iterable[str]) -> str:
    """The name, if it is one of these; otherwise an error that suggests the nearest."""
    every = tuple(names)
    if name in every:
        return name
    raise InputError(f"There is no {kind} {name!r}.{near(name, every)} Known: {', '.join(every)}.")


def near(name: str, names: Iterable[str]) -> str:
    """`` Did you mean 'fsdp'?``, or nothing."""
    close = difflib.get_close_matches(name, tuple(names), 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def hint(name: str, names: Iterable[str]) -> str:
    """`` Did you mean 'layers.0.mlp'?``, or what names look like; nothing where there are none."""
    every = tuple(names)
    ends = {_end(other, name): other for other in reversed(every)}
    close = difflib.get_close_matches(name, [*ends, *every], 1, NEAR)
    if close:
        return f" Did you mean {ends.get(close[0], close[0])!r}?"
    return f" Names look like {', '.join(closest(name, every))}." if every else ""


def closest(name: str, names: Iterable[str]) -> list[str]:
    """The names most like what was asked for, or with ends most like it; of equal layers the first."""

    def likeness(other: str) -> float:
        forms = other, _end(other, name)
        return max(difflib.SequenceMatcher(None, name, each).ratio() for each in forms)

    distinct: dict[str, str] = {}
    for other in sorted(names, key=lambda name: (len(name), name)):
        distinct.setdefault(re.sub(r"\b\d+\b", "*", other), other)
    return sorted(distinct.values(), key=likeness, reverse=True)[:EXAMPLES]


def _end(other: str, name: str) -> str:
    """As many parts of a path as were written."""
    return ".".join(other.split(".")[-1 - name.count(".") :])
