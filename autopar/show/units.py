"""Numbers with units, as people read them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """``41.2 ms``."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * factor >= 1 or unit == "µs":
            return f"{value * factor:.1f} {unit}"
    return f"{value} s"


def nbytes(value: float) -> str:
    """``1.3 GiB``."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.0f} B"
