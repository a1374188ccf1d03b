"""Checks the figures in plan files: finite numbers that are not negative."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

ROUNDING = 1e-9
"""Tolerance for rounding errors in differences of equal figures."""


def figure_faults(value: object, where: str) -> Iterator[str]:
    """Yield ``PATH is VALUE`` for every invalid number in a value and its fields, recursively."""
    if isinstance(value, (int, float)):
        if not -ROUNDING <= value < math.inf:
            yield f"{where} is {value}"
    elif isinstance(value, (tuple, list)):
        for number, each in enumerate(value):
            yield from figure_faults(each, f"{where}.{number}")
    elif is_dataclass(value):
        for field in fields(value):
            yield from figure_faults(getattr(value, field.name), f"{where}.{field.name}")
