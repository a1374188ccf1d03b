"""Valid ranges of a profile's numbers, keyed by the wording of the error message."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from types import MappingProxyType

from cost_models.errors import CostModelError

LONGEST_S = 3600.0
"""Upper limit of a call's or a message's latency; it keeps sums of a profile's numbers finite."""
MOST = 10**9
"""Upper limit of the number of ranks."""
SECONDS = "zero or more seconds, an hour at most"
"""Range of the fixed time of a call or a message."""
TAKEN = "more than zero seconds, an hour at most"
"""Range of measured times."""
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
    """Raise `CostModelError` unless `number` is a whole number from 1 to `MOST`."""
    if not number >= 1 or number % 1:
        raise CostModelError(f"{what} are {number}, not a whole number of 1 or more.")
    if number > MOST:
        raise CostModelError(f"{what} are more than {MOST:,}, which no machine has.")


def is_date(text: str) -> bool:
    """Return whether the text is a date such as 2026-11-27."""
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True
