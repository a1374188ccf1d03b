"""What a plan's seconds and bytes are of: where two differ in it, they are not to be compared."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autopar.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Identity:
    """A model in its sizes, the devices, and how both were priced; as texts, which people compare."""

    model: str
    graph: str
    """The digest of the graph: sizes, batch, versions and code change it."""
    mesh: str
    hardware: str
    """The profile's name and the digest of its figures."""
    precision: str
    optimizer: str
    times: str
    """Where the seconds of operators are from: modelled, or measured on so and so."""

    @classmethod
    def of(cls, plan: Plan) -> Identity:
        """What a plan belongs to."""
        return cls(
            plan.model, plan.graph_digest, str(plan.mesh), f"{plan.hardware} ({plan.hardware_digest})",
            plan.precision, plan.optimizer, str(plan.times or "modelled"),
        )  # fmt: skip

    def differences(self, plans: Identity) -> list[str]:
        """What differs from the plan's identity, a line each; empty where nothing does."""
        names = {"graph": "sizes, batch, version or code: graph", "times": "operator times:"}
        return [
            f"{names.get(name, f'{name}:')} {mine}, the plan's {theirs}"
            for name, mine, theirs in (
                (each.name, getattr(self, each.name), getattr(plans, each.name))
                for each in fields(self)
            )
            if mine != theirs
        ]
