"""What a plan's file must say of itself before there is a graph to hold it against."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from autopar.errors import PlanError
from autopar.placement import Sharding

if TYPE_CHECKING:
    from autopar.plans.plan import Plan


def check_sound(plan: Plan, source: str) -> None:
    """Raise `PlanError`, naming `source`, unless types have an axis each and figures are figures."""
    fault = next(_faults(plan), None)
    if fault:
        raise PlanError(
            f"{source} is not an autopar plan: {fault}. Make a new one with `autopar plan`."
        )


def _faults(plan: Plan) -> Iterator[str]:
    axes, mesh = len(plan.mesh.sizes), plan.mesh
    for where, sharding in _shardings(plan):
        if len(sharding.types) != axes:
            yield f"{where} is {sharding}, but the mesh ({mesh}) has {axes} axes"
    for conversion in plan.conversions:
        if not 0 <= conversion.axis < axes:
            yield f"{conversion.tensor} is converted on axis {conversion.axis} of ({mesh})"
    for parameter in plan.parameters:
        fault = None if parameter.pads else parameter.leaf.fault(parameter.shape, mesh)
        if parameter.shape and fault:
            yield f"{parameter.name}: {fault}"
    estimate = plan.estimate
    figures = {
        "compute_s": estimate.compute_s,
        "exposed_s": estimate.exposed_s, "hidden_s": estimate.hidden_s,
        "memory": float(estimate.memory_nbytes),
    }  # fmt: skip
    for name, figure in figures.items():
        if not 0 <= figure < math.inf:
            yield f"{name} is {figure}"


def _shardings(plan: Plan) -> Iterator[tuple[str, Sharding]]:
    for choice in plan.choices:
        for sharding in (*choice.sharding.inputs, *choice.sharding.outputs):
            yield choice.node, sharding
    for parameter in plan.parameters:
        yield parameter.name, parameter.stored
        yield parameter.name, parameter.leaf
    for conversion in plan.conversions:
        yield conversion.tensor, conversion.source
        yield conversion.tensor, conversion.target
