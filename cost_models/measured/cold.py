"""Number of copies of a call to alternate, so that its operands are as cold in cache as in a step."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

COLD_NBYTES: Mapping[str, int] = MappingProxyType({"cpu": 2**26, "cuda": 2**28})
"""Bytes that exceed the caches, by kind of device."""
MOST_COPIES = 16


def copies_of(nbytes: float, device: str) -> int:
    """Return the number of copies that evicts large operands and results from the caches.

    Small ones stay in the last-level cache, as in a step, where most operands were just computed.
    """
    return int(min(MOST_COPIES, max(1, COLD_NBYTES[device] // max(nbytes, 1))))
