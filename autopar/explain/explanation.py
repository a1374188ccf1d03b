"""Why a plan does what it does with one thing, and what else was possible: values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from autopar.plans.changes import Difference
from autopar.plans.plan import Plan
from autopar.utils.shown import Shown

Kind = Literal["parameter", "operator", "block"]


@dataclass(frozen=True)
class Alternative:
    """One way, and what the best plan that has it costs; everything else was decided anew.

    `difference` is from the plan that is explained to `plan`.  Where there is no plan, `why` says so:
    the way is impossible or does not fit into the memory; it is empty where nothing was solved.
    """

    types: str
    words: str
    is_chosen: bool
    bound_s: float | None = None
    """No plan with it takes less, as the solver counts; inf: impossible.  None: not known."""
    plan: Plan | None = field(default=None, repr=False)
    difference: Difference | None = field(default=None, repr=False)
    why: str = ""

    @property
    def more_s(self) -> float | None:
        """What a step takes more than with what was chosen, by the prediction."""
        return None if self.difference is None else self.difference.figure("step").more


@dataclass(frozen=True)
class Explanation(Shown):
    """All ways of one operator, parameter or block: what was chosen, then the cheapest first.

    Those without a plan come last.  `scope` says of what the figures are, where not of the whole step.
    """

    name: str
    path: str
    kind: Kind
    sentence: str
    alternatives: tuple[Alternative, ...]
    scope: str = ""
    unit: str = "a step"
    """What seconds are of."""

    @property
    def chosen(self) -> Alternative:
        """What the plan does."""
        return next(each for each in self.alternatives if each.is_chosen)
