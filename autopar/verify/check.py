"""The result of one check of a plan, and comparison of stated with recomputed values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cost_models.hardware import Hardware, digest

EQUAL = 1e-9
"""Relative tolerance between seconds that were computed twice in the same way."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check: the finding, or what is wrong."""

    name: str
    ok: bool
    what: str


def checked(name: str, holds: str, faults: Iterable[str]) -> Check:
    """Return a check that reports the first fault and the number of others, or else `holds`."""
    found = list(faults)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Check(name, not found, f"{found[0]}{more}" if found else holds)


def differs(what: str, stated: object, found: object) -> Iterator[str]:
    """Yield a fault unless both are equal: seconds up to rounding, all else exactly."""
    if isinstance(stated, float) and isinstance(found, float):
        equal = math.isclose(stated, found, rel_tol=EQUAL)
    else:
        equal = stated == found
    if not equal:
        yield f"{what} is {stated} in the plan; computed again it is {found}"


def priced_for(named: str, figures: str, profile: Hardware) -> Check:
    """Check that the profile is the one that a plan names, with the numbers that priced it."""
    name, found = profile.device.name, digest(profile)
    faults = [
        *differs("hardware", named, name),
        *differs("hardware_digest", figures, found),
    ]
    if faults:
        # A calibrated profile may have the name of a shipped one but different numbers.
        faults[0] += " (pass the file of the profile that priced it with --hardware)"
    return checked("hardware", f"{name}, {found}", faults)
