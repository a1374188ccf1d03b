"""Checks the internal consistency of a plan file, without a graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from autopar.errors import PlanError
from autopar.ir.placement import S, Sharding
from autopar.plans.figures import ROUNDING, figure_faults
from autopar.plans.plan_data import PlanData
from autopar.utils.identifiers import WORDS, is_identifier

FIGURES = "objective_s", "estimate", "asked", "search", "shares", "padded", "views", "buckets"
"""The plan's fields that consist of figures which are never negative."""


def check_sound(plan: PlanData, source: str) -> None:
    """Raise `PlanError` with `source` unless the plan is consistent.

    Shardings must have one type per mesh axis, names must refer to existing things, and figures must be
    valid.
    """
    fault = next(_faults(plan), None)
    if fault:
        raise PlanError(
            f"{source} is not an autopar plan: {fault}. Make a new one with `autopar plan`."
        )


def _faults(plan: PlanData) -> Iterator[str]:
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
        for form in (parameter.stored, parameter.leaf):
            if any(isinstance(kind, S) and kind.dim >= len(parameter.shape) for kind in form):
                yield f"{parameter.name} is {form}, but has {len(parameter.shape)} dims"
    yield from _text_faults(plan)
    yield from _name_faults(plan)
    yield from _figure_faults(plan)


def _text_faults(plan: PlanData) -> Iterator[str]:
    """Yield names that are not valid in code and file names, where they will be used."""
    if not is_identifier(plan.model):
        yield f"the model is called {plan.model!r}, which is not a class name"
    for choice in plan.choices:
        for variant in choice.sharding.variants:
            if variant and (not is_identifier(variant) or variant in WORDS):
                yield (
                    f"{choice.node} is computed by {variant!r}, which is not a name of a local "
                    "implementation"
                )


def _name_faults(plan: PlanData) -> Iterator[str]:
    """Yield duplicate decisions, and figures of operators or axes that do not exist."""
    nodes = Counter(choice.node for choice in plan.choices)
    parameters = Counter(parameter.name for parameter in plan.parameters)
    for what, names in (("operator", nodes), ("parameter", parameters)):
        for name, times in names.items():
            if times > 1:
                yield f"{what} {name} is decided {times} times"
    for timed in plan.estimate.operators:
        if timed.node not in nodes:
            yield f"estimate.operators has {timed.node!r}, which the plan does not contain"
    parts = plan.estimate.parts
    axes = (
        *(("estimate.flows", flow.axis) for flow in plan.estimate.flows),
        *(("estimate.parts.hideable", axis) for axis, _ in (parts.hideable if parts else ())),
        *(("shares", share.axis) for share in plan.shares),
        *(("compression", axis) for axis in (plan.compression.axes if plan.compression else ())),
    )
    for where, axis in axes:
        if axis not in plan.mesh.names:
            yield f"{where} has an axis {axis!r}; the mesh is ({plan.mesh})"


def _figure_faults(plan: PlanData) -> Iterator[str]:
    for name in FIGURES:
        yield from figure_faults(getattr(plan, name), name)
    for number, share in enumerate(plan.shares):
        if max(share.flops, share.stored, share.used) > 1 + ROUNDING:
            yield f"shares.{number} is more than the whole: {share}"
    parts = plan.estimate.parts
    if plan.prefetch and not (parts and parts.prefetched):
        yield "prefetch is true, but no gather in estimate.parts.prefetched starts ahead"
    bounds = plan.bound_s, plan.bound_nbytes or 0.0
    if not all(map(math.isfinite, bounds)):  # a weak bound may be negative
        yield f"the bound is {bounds[0]} s, within {bounds[1]} bytes"


def _shardings(plan: PlanData) -> Iterator[tuple[str, Sharding]]:
    for choice in plan.choices:
        for sharding in (*choice.sharding.inputs, *choice.sharding.outputs):
            yield choice.node, sharding
    for parameter in plan.parameters:
        yield parameter.name, parameter.stored
        yield parameter.name, parameter.leaf
    for conversion in plan.conversions:
        yield conversion.tensor, conversion.source
        yield conversion.tensor, conversion.target
