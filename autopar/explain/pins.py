"""What a person asked of which parameter or operator, in few words: for marks beside them."""

from __future__ import annotations

from collections.abc import Iterable

from autopar.ir.graph import Graph
from autopar.plans.plan import Plan
from autopar.request.constraints import Constraint

OF_PARAMETERS = ("stored", "leaf", "used", "tensor")
PINNED = " ◆"
"""Behind the name of what constraints speak of."""
NOTE = f"{PINNED.strip()} you asked for it: see constraints above"


def pins(plan: Plan) -> dict[str, str]:
    """Each parameter of which a constraint of the user's speaks, and what it says."""
    found = {
        p.name: ", ".join(
            _said(c, plan)
            for c in plan.asked.constraints
            if c.pattern != "*" or c.subject != "tensor"
            if c.subject in OF_PARAMETERS and c.matches(p.name)
        )
        for p in plan.parameters
    }
    return {name: said for name, said in found.items() if said}


def pinned_names(plan: Plan, names: Iterable[str]) -> dict[str, str]:
    """Each operator, by its path, of which a constraint on tensors speaks."""
    asked = [c for c in plan.asked.constraints if c.subject == "tensor"]
    found = {name: ", ".join(_said(c, plan) for c in asked if c.matches(name)) for name in names}
    return {name: said for name, said in found.items() if said}


def pinned_operators(plan: Plan, graph: Graph | None) -> dict[str, str]:
    """The same for the operators of a plan; without the graph, which has their paths, none."""
    if graph is None:
        return {}
    return pinned_names(plan, (graph.node[c.node].path for c in plan.choices if c.sharding.inputs))


def _said(constraint: Constraint, plan: Plan) -> str:
    words = ", else ".join(" | ".join(alternative) for alternative in constraint.allowed)
    axis = constraint.axis or "every axis" if len(plan.mesh) > 1 else ""
    where = "" if constraint.subject == "tensor" else f"{constraint.subject} "
    words = {"pin": "", "forbid": "not ", "prefer": "preferably "}[constraint.kind] + words
    return f"{where}{words}{f' on {axis}' if axis else ''}"
