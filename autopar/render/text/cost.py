"""Renders a plan's header (model, mesh, hardware, request) and the predicted cost of a step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from rich.table import Table

from autopar.ir.units import nbytes, seconds
from autopar.plans.plan import Plan
from autopar.plans.record import Search
from autopar.render.text.padding import compared
from autopar.render.text.proof import proof
from autopar.render.text.table import row, table
from autopar.request.constraints import Constraint


def header(plan: Plan) -> Table:
    """Return a table of model, mesh, hardware, request, and digest."""
    made = Table.grid(padding=(0, 2))
    proved = proof(plan.objective_s, plan.bound_s, plan.proof)
    facts = {
        "model": f"{plan.model}  ({plan.idle})" if plan.idle else plan.model,
        "mesh": f"{plan.mesh}  ({plan.mesh.world_size} devices)",
        "compared with": _others(plan),
        "hardware": plan.hardware,
        "operator times": plan.sources,
        "memory limit": limited(plan.asked.memory_limit),
        "preset": plan.preset or "none, the solver chose",
        "constraints": listed(plan.asked.constraints),
        "padding": compared(plan),
        "prefetch": "weights of the next block of a loop" if plan.prefetch else "",
        "compression": f"{plan.compression}: a step is not exact" if plan.compression else "",
        "searched": _searched(plan.search),
        "solver": f"{seconds(plan.objective_s)} by its count, {proved}",
        "optimizer": plan.optimizer,
        "precision": plan.precision,
        "plan": f"{plan.digest}  of graph {plan.graph_digest}",
        "made by": ", ".join(f"{name} {version}" for name, version in plan.versions),
    }
    for name, fact in facts.items():
        if fact:
            row(made, name, fact)
    return made


def constraints(plan: Plan) -> Table:
    """Return a table of the constraints, for output without the header."""
    made = Table.grid(padding=(0, 2))
    row(made, "constraints", listed(plan.asked.constraints))
    return made


def listed(asked: Iterable[Constraint]) -> str:
    """Return the constraints, one per line."""
    return "\n".join(map(str, asked)) or "none"


def limited(limit_nbytes: float | None) -> str:
    """Return the requested memory limit of a device as text."""
    if limit_nbytes == math.inf:
        return "none: plans may be larger than the device"
    return "none asked for" if limit_nbytes is None else nbytes(limit_nbytes)


def _searched(search: Search) -> str:
    """Return the size of the search before and after pruning."""
    return (
        f"{search.candidates} candidates, {search.largest} at most; after pruning "
        f"{search.variables} variables, {search.states} states"
    )


def _others(plan: Plan) -> str:
    """Return the other meshes that were searched, and their costs."""
    return "; ".join(
        f"{view.mesh}: {'too small' if view.objective_s is None else seconds(view.objective_s)}"
        for view in plan.views
        if view.mesh != str(plan.mesh)
    )


def costs(plan: Plan) -> Table:
    """Return a table of predicted seconds and bytes of a step, by kind."""
    e = plan.estimate
    spent = {
        "compute": e.compute_s,
        "communication, exposed": e.exposed_s,
        "step": e.step_s,
        "communication, hidden": e.hidden_s,
    }
    kept = {
        "parameters": e.parameter_nbytes,
        "gradients": e.gradient_nbytes,
        "optimizer": e.optimizer_nbytes,
        "activations": e.activation_nbytes,
        "working set": e.working_nbytes,
        "peak": e.memory_nbytes,
    }
    if e.absent_nbytes:
        kept["peak, gradients dropped"] = e.dropping_nbytes
    made = table("predicted step, on one rank", "time", "seconds", "memory", "bytes",
                 right=("seconds", "bytes"))  # fmt: skip
    left = [(name, seconds(value)) for name, value in spent.items()]
    right = [(name, nbytes(value)) for name, value in kept.items()]
    for one, other in itertools.zip_longest(left, right, fillvalue=("", "")):
        row(made, *one, *other)
    return made


def communication(plan: Plan) -> Table:
    """Return a table of bytes and seconds by axis, collective and phase, with totals."""
    made = table(
        "communication of a step, on one rank", "axis", "collective", "when", "calls", "bytes",
        "time", right=("calls", "bytes", "time"),
    )  # fmt: skip
    flows = plan.estimate.flows
    for flow in flows:
        once = {"forward": "parameters, once a step", "backward": "gradients, once a step"}
        when = once[flow.direction] if flow.scope == "step" else flow.direction
        row(made, flow.axis, flow.collective, when, str(flow.calls), nbytes(flow.nbytes),
            seconds(flow.seconds))  # fmt: skip
    total = [sum(flow.calls for flow in flows), sum(flow.nbytes for flow in flows)]
    row(made, "all" if flows else "none", "", "", str(total[0]), nbytes(total[1]),
        seconds(sum(flow.seconds for flow in flows)))  # fmt: skip
    return made
