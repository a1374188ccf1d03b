"""Suggests known names for an unknown one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from autopar.errors import InputError

EXAMPLES = 5
NEAR = 0.5
"""Least similarity (0 to 1) of a suggestion: that of a name, or its end, with a typing error."""


def known(kind: str, name: str, names: Iterable[str]) -> str:
    """Return the name if it is one of these; otherwise raise `InputError` with the nearest."""
    every = tuple(names)
    if name in every:
        return name
    raise InputError(f"There is no {kind} {name!r}.{near(name, every)} Known: {', '.join(every)}.")


def near(name: str, names: Iterable[str], least: float = 0.6) -> str:
    """Return `` Did you mean 'fsdp'?``, or an empty string without a similarity of `least` (0 to 1)."""
    close = difflib.get_close_matches(name, tuple(names), 1, least)
    return f" Did you mean {close[0]!r}?" if close else ""


def hint(name: str, names: Iterable[str]) -> str:
    """Return `` Did you mean 'layers.0.mlp'?``, or example names; empty if there are no names."""
    every = tuple(names)
    ends = {_end(other, name): other for other in reversed(every)}
    close = difflib.get_close_matches(name, [*ends, *every], 1, NEAR)
    if close:
        return f" Did you mean {ends.get(close[0], close[0])!r}?"
    return f" Names look like {', '.join(closest(name, every))}." if every else ""


def closest(name: str, names: Iterable[str]) -> list[str]:
    """Return the names most similar as a whole or at the end; of numbered layers only the first."""

    def likeness(other: str) -> float:
        forms = other, _end(other, name)
        return max(difflib.SequenceMatcher(None, name, each).ratio() for each in forms)

    distinct: dict[str, str] = {}
    for other in sorted(names, key=lambda name: (len(name), name)):
        distinct.setdefault(re.sub(r"\b\d+\b", "*", other), other)
    return sorted(distinct.values(), key=likeness, reverse=True)[:EXAMPLES]


def _end(other: str, name: str) -> str:
    """Return the last parts of a path, as many as `name` has."""
    return ".".join(other.split(".")[-1 - name.count(".") :])
