"""Data classes of an explanation: one choice of a plan and its alternatives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from autopar.plans.changes import Difference
from autopar.plans.plan import Plan
from autopar.utils.shown import Shown

Kind = Literal["parameter", "operator", "block"]


@dataclass(frozen=True)
class Alternative:
    """One alternative with the best plan that contains it, all else re-optimized.

    `difference` is from the explained plan to `plan`.  If the alternative is impossible or does not
    fit into memory, `plan` is None and `why` gives the reason; `why` is empty if it was not solved for.
    """

    types: str
    words: str
    is_chosen: bool
    bound_s: float | None = None
    """Lower bound on the solver's objective of plans with it; inf: impossible; None: unknown."""
    plan: Plan | None = field(default=None, repr=False)
    difference: Difference | None = field(default=None, repr=False)
    why: str = ""

    @property
    def more_s(self) -> float | None:
        """Predicted step time minus that of the chosen alternative, in seconds."""
        return None if self.difference is None else self.difference.figure("step").more


@dataclass(frozen=True)
class Explanation(Shown):
    """All alternatives of one operator, parameter or block: the chosen one, then by ascending cost.

    Those without a plan come last.  `scope` says what the numbers refer to, if not the whole step.
    """

    name: str
    path: str
    kind: Kind
    sentence: str
    alternatives: tuple[Alternative, ...]
    scope: str = ""
    unit: str = "a step"
    """What the seconds refer to."""

    @property
    def chosen(self) -> Alternative:
        """The alternative that the plan contains."""
        return next(each for each in self.alternatives if each.is_chosen)
