"""Numbers whose sums are exact in any order, so that equal sets have equal sums."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EXACT_BITS = 48
"""Bits of the sum of all numbers; a float has 53."""


def rounded_down(values: Array) -> Array:
    """Return numbers >= 0, rounded down to multiples of one power of two; infinity stays."""
    total = float(values[np.isfinite(values)].sum())
    unit = 2.0 ** (np.ceil(np.log2(total)) - EXACT_BITS) if total > 0 else 1.0
    return np.floor(values / unit) * unit
