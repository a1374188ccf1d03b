"""What a plan is asked for by: the arguments of `parallelize` that lead to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from autopar.request.constraints import Constraint
from autopar.request.options import Options
from autopar.request.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Used:
    """Parameters that match `pattern` have this type on one axis where operators read them."""

    pattern: str
    axis: str
    types: str

    @property
    def constraint(self) -> Constraint:
        """The constraint that asks for it."""
        return Constraint.of("used", self.pattern, self.types, self.axis)


@dataclass(frozen=True, slots=True)
class Ask:
    """A preset, constraints on weights, or stages with a schedule; the solver decides the rest."""

    preset: str = ""
    used: tuple[Used, ...] = ()
    stages: int = 1
    schedule: str = ""

    def options(self, asked: Options) -> Options:
        """Return a user's options with this ask."""
        return replace(
            asked,
            preset=self.preset or None,
            constraints=tuple(each.constraint for each in self.used) or None,
            pipeline=self.pipeline,
        )

    @property
    def pipeline(self) -> Pipeline:
        """The stages that it asks for."""
        return Pipeline(self.stages, self.schedule or None)

    def but(self, used: Used) -> Ask:
        """Return the ask with another type of some weights."""
        others = (u for u in self.used if (u.pattern, u.axis) != (used.pattern, used.axis))
        return replace(self, used=(*others, used))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `parallelize` that ask for it, beside the user's own."""
        found: dict[str, Any] = {}
        if self.preset:
            found["preset"] = self.preset
        if self.used:
            tables: dict[str, dict[str, str]] = {}
            for each in self.used:
                tables.setdefault(f"used:{each.pattern}", {})[each.axis] = each.types
            found["constraints"] = tables
        if self.stages > 1:
            found["pipeline"] = self.pipeline
        return found

    def __str__(self) -> str:
        """The ask in one line: ``zero2``, ``2 stages, 1f1b``, ``up.weight as S(0) on y``."""
        words = [f"{u.pattern} as {u.types} on {u.axis}" for u in self.used]
        if self.stages > 1:
            words = [f"{self.stages} stages", self.schedule or "1f1b"]
        return ", ".join([self.preset, *words] if self.preset else words) or "autopar"
