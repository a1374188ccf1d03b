"""How many copies of a call take turns, so that what it reads is as cold as it is in a step."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

COLD_NBYTES: Mapping[str, int] = MappingProxyType({"cpu": 2**26, "cuda": 2**28})
"""More than caches hold, by kind of device."""
MOST_COPIES = 16


def copies_of(nbytes: float, device: str) -> int:
    """So many that large operands and results do not stay in the caches.

    Small ones do stay in the last of them, as what a step's operator reads was mostly just made.
    """
    return int(min(MOST_COPIES, max(1, COLD_NBYTES[device] // max(nbytes, 1))))
