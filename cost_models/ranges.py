"""The ranges that a profile's figures must be in, in the words of the error that says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from cost_models.errors import CostModelError

LONGEST_S = 3600.0
"""No call and no message starts later: sums of what a profile says stay numbers."""
SECONDS = "zero or more seconds, an hour at most"
"""Of what a call or a message takes, whatever its size."""
RANGES: Mapping[str, Callable[[float], bool]] = MappingProxyType(
    {
        "positive": lambda value: value > 0,
        "zero or more": lambda value: value >= 0,
        "between 0 and 1": lambda value: 0 <= value <= 1,
        SECONDS: lambda value: 0 <= value <= LONGEST_S,
    }
)


def check_count(what: str, number: float) -> None:
    """Raise `CostModelError` unless it is a whole number of 1 or more."""
    if not number >= 1 or number % 1:
        raise CostModelError(f"{what} are {number}, not a whole number of 1 or more.")
