"""Figures of plans as files have them: each is a number, and none is below zero."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

ROUNDING = 1e-9
"""So far below zero is what is left of a difference of equal figures."""


def figure_faults(value: object, where: str) -> Iterator[str]:
    """What is no figure in a value, and in whatever it is made of, each with its place."""
    if isinstance(value, (int, float)):
        if not -ROUNDING <= value < math.inf:
            yield f"{where} is {value}"
    elif isinstance(value, (tuple, list)):
        for number, each in enumerate(value):
            yield from figure_faults(each, f"{where}.{number}")
    elif is_dataclass(value):
        for field in fields(value):
            yield from figure_faults(getattr(value, field.name), f"{where}.{field.name}")
