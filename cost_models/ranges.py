"""The ranges that a profile's figures must be in, in the words of the error that says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from cost_models.errors import CostModelError

LONGEST_S = 3600.0
"""No call and no message starts later: sums of what a profile says stay numbers."""
MOST = 10**9
"""No machine has more ranks."""
SECONDS = "zero or more seconds, an hour at most"
"""Of what a call or a message takes, whatever its size."""
TAKEN = "more than zero seconds, an hour at most"
"""Of what was measured."""
RANGES: Mapping[str, Callable[[float], bool]] = MappingProxyType(
    {
        "positive": lambda value: value > 0,
        "zero or more": lambda value: value >= 0,
        "two or more": lambda value: value >= 2,
        "between 0 and 1": lambda value: 0 <= value <= 1,
        TAKEN: lambda value: 0 < value <= LONGEST_S,
        SECONDS: lambda value: 0 <= value <= LONGEST_S,
    }
)


def check_count(what: str, number: float) -> None:
    """Raise `CostModelError` unless it is a whole number of 1 or more that a machine can have."""
    if not number >= 1 or number % 1:
        raise CostModelError(f"{what} are {number}, not a whole number of 1 or more.")
    if number > MOST:
        raise CostModelError(f"{what} are more than {MOST:,}, which no machine has.")
