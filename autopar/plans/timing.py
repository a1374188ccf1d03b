"""Sources of operator times: measured on a device, interpolated from other sizes, or modelled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

SOURCES = ("measured", "interpolated", "modelled")


@dataclass(frozen=True, slots=True)
class OpTime:
    """The predicted time of an operator on one rank, its source, and the memory in use meanwhile.

    `measured`: exactly this call was timed on this device; `interpolated`: calls of other sizes were;
    `modelled`: none was, so the roofline model is used.  Bytes do not include memory at rest.
    """

    node: str
    forward_s: float
    backward_s: float
    source: Literal["measured", "interpolated", "modelled"]
    forward_nbytes: int = 0
    backward_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """The measured times that a plan used: their device and software, and their digest."""

    setting: str
    digest: str

    def __str__(self) -> str:
        return f"measured on {self.setting} ({self.digest})"


def summed_up(operators: Iterable[OpTime], timing: Timing | None) -> str:
    """Return how many operators have which source, and their share of compute; "" for old plans."""
    every = tuple(operators)
    total = sum(each.forward_s + each.backward_s for each in every) or 1.0
    parts = []
    for source in SOURCES:
        spent = [each.forward_s + each.backward_s for each in every if each.source == source]
        if spent:
            parts.append(f"{len(spent)} {source} ({sum(spent) / total:.1%} of their seconds)")
    where = "" if timing is None else f"\nmeasured on {timing.setting}"
    return ", ".join(parts) + where
