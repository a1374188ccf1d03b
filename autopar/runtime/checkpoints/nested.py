"""Spells out lists, tuples and dicts of tensors in an optimizer's state as keys of single tensors.

``{"factors": [a, b]}`` is kept as ``factors[0]`` and ``factors[1]``; tuples have round brackets, and
dicts braces around their key.  Containers without tensors stay values.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from autopar.errors import CheckpointError

BRACKETS: dict[type, str] = {list: "[]", tuple: "()", dict: "{}"}
KINDS = {brackets[0]: kind for kind, brackets in BRACKETS.items()}
STEP = re.compile(r"([\[({])([^\])}]*)[\])}]")


def spelled(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values that stand for one value.

    Raise `CheckpointError` for a dict's key that is no number and no plain word.
    """
    if type(value) not in BRACKETS or not _has_tensors(value):
        yield key, value
        return
    brackets = BRACKETS[type(value)]
    for place, each in value.items() if isinstance(value, dict) else enumerate(value):
        if not isinstance(place, int) and not (isinstance(place, str) and place.isidentifier()):
            raise CheckpointError(
                f"The optimizer's state {key!r} is a dict with the key {place!r}, which a checkpoint "
                "cannot hold: use integers or names as keys."
            )
        yield from spelled(f"{key}{brackets[0]}{place!r}{brackets[1]}", each)


def rebuilt(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values whose `spelled` keys and values these are."""
    made: dict[str, Any] = {}
    for key, value in pairs:
        name = STEP.sub("", key)
        steps = [(KINDS[opening], ast.literal_eval(place)) for opening, place in STEP.findall(key)]
        _put(made, [(dict, name), *steps], value)
    return {name: _closed(value) for name, value in made.items()}


class _Open:
    """A container that is being filled."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.of: dict[Any, Any] = {}


def _put(made: dict[Any, Any], steps: list[tuple[type, Any]], value: Any) -> None:
    (_, place), *rest = steps
    if not rest:
        made[place] = value
        return
    inside = made.setdefault(place, _Open(rest[0][0]))
    _put(inside.of, rest, value)


def _closed(value: Any) -> Any:
    if not isinstance(value, _Open):
        return value
    filled = {place: _closed(each) for place, each in value.of.items()}
    return filled if value.kind is dict else value.kind(filled[i] for i in sorted(filled))


def _has_tensors(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if type(value) not in BRACKETS:
        return False
    return any(map(_has_tensors, value.values() if isinstance(value, dict) else value))
