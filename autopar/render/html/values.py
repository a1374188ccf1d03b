"""Optional content of a report."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.explain.explanation import Explanation
from autopar.plans.plan import Plan
from autopar.profile.traced_step import Beside
from autopar.render.html.roofline import Roofline


@dataclass(frozen=True)
class Extras:
    """`frontier` are plans of the time-memory curve; sources are (title, text)."""

    frontier: tuple[Plan, ...] = ()
    roofline: Roofline | None = None
    emitted: tuple[tuple[str, str], ...] = ()
    written: tuple[tuple[str, str], ...] = ()
    limit_nbytes: float | None = None
    """Memory of a device, used if the plan itself has no limit."""
    explained: tuple[Explanation, ...] = ()
    measured: Beside | None = None
    """A measured step of this plan."""
