"""Identifies the setting of a plan's figures; figures of different settings are not comparable."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autopar.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Identity:
    """A model and its sizes, the devices, and the source of the costs, as readable texts."""

    model: str
    graph: str
    """The graph's digest; it depends on sizes, batch, versions and code."""
    mesh: str
    hardware: str
    """The profile's name and the digest of its figures."""
    precision: str
    optimizer: str
    times: str
    """The source of operator times: ``modelled``, or ``measured on ...``."""

    @classmethod
    def of(cls, plan: Plan) -> Identity:
        """Return the identity of a plan."""
        return cls(
            plan.model, plan.graph_digest, str(plan.mesh), f"{plan.hardware} ({plan.hardware_digest})",
            plan.precision, plan.optimizer, str(plan.times or "modelled"),
        )  # fmt: skip

    def differences(self, plans: Identity) -> list[str]:
        """Return the differences from a plan's identity, one line each."""
        names = {"graph": "sizes, batch, version or code: graph", "times": "operator times:"}
        return [
            f"{names.get(name, f'{name}:')} {mine}, the plan's {theirs}"
            for name, mine, theirs in (
                (each.name, getattr(self, each.name), getattr(plans, each.name))
                for each in fields(self)
            )
            if mine != theirs
        ]
