"""Finds the parameters and operators that user constraints apply to, to mark them in output."""

from __future__ import annotations

from collections.abc import Iterable

from autopar.ir.graph import Graph
from autopar.plans.plan import Plan
from autopar.request.constraints import Constraint

OF_PARAMETERS = ("stored", "leaf", "used", "tensor")
PINNED = " ◆"
"""Mark appended to names to which constraints apply."""
NOTE = f"{PINNED.strip()} you asked for it: see constraints above"


def pins(plan: Plan) -> dict[str, str]:
    """Return the text of the user's constraints by parameter, for constrained parameters."""
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
    """Return the text of tensor constraints by operator path, for constrained operators."""
    asked = [c for c in plan.asked.constraints if c.subject == "tensor"]
    found = {name: ", ".join(_said(c, plan) for c in asked if c.matches(name)) for name in names}
    return {name: said for name, said in found.items() if said}


def pinned_operators(plan: Plan, graph: Graph | None) -> dict[str, str]:
    """Return `pinned_names` of a plan's operators; empty without the graph, which has their paths."""
    if graph is None:
        return {}
    return pinned_names(plan, (graph.node[c.node].path for c in plan.choices if c.sharding.inputs))


def _said(constraint: Constraint, plan: Plan) -> str:
    words = ", else ".join(" | ".join(alternative) for alternative in constraint.allowed)
    axis = constraint.axis or "every axis" if len(plan.mesh) > 1 else ""
    where = "" if constraint.subject == "tensor" else f"{constraint.subject} "
    words = {"pin": "", "forbid": "not ", "prefer": "preferably "}[constraint.kind] + words
    return f"{where}{words}{f' on {axis}' if axis else ''}"
