"""Checks a plan's predictions, shares, memory and objective against those of its decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from autopar.plans.estimate import Estimate
from autopar.plans.plan import Plan
from autopar.plans.record import Share
from autopar.verify.check import Check, checked, differs
from autopar.verify.recomputed import RecomputedFigures

PARTS = ("forward_s", "backward_s", "update_s", "covers_s")
Figures = dict[str, object]
"""Values by name."""


def figures(again: RecomputedFigures) -> Iterator[Check]:
    """Check every number that follows from the decisions."""
    stated, found = again.stated, again.plan
    for name, mine, theirs in (
        (
            "estimate",
            _of_estimate(stated.estimate) | _of_runtime(stated),
            _of_estimate(_as_far(found, stated)) | _of_runtime(found),
        ),
        ("shares", _of_shares(stated.shares), _of_shares(found.shares)),
    ):
        yield checked(name, f"{len(theirs)} figures", _unequal(mine, theirs))
    yield _memory(again)
    seconds = again.answer.seconds
    faults = differs("objective_s", stated.objective_s, seconds)
    yield checked("objective", f"{seconds:g} s", faults)


def _unequal(stated: Mapping[str, object], found: Mapping[str, object]) -> Iterator[str]:
    for name in dict.fromkeys((*stated, *found)):
        yield from differs(name, stated.get(name, "missing"), found.get(name, "missing"))


def _as_far(found: Plan, stated: Plan) -> Estimate:
    """Return the recomputed estimate without the fields that an older plan file lacks."""
    made = found.estimate
    if stated.estimate.parts is None:
        made = replace(made, parts=None)
    if stated.times is None and not stated.estimate.operators:
        made = replace(made, operators=())
    if stated.estimate.absent_nbytes is None:
        made = replace(made, absent_nbytes=None)
    return made


def _of_estimate(estimate: Estimate) -> Figures:
    apart = ("flows", "operators", "parts")
    named = {f.name: getattr(estimate, f.name) for f in fields(estimate) if f.name not in apart}
    if estimate.parts is not None:
        named |= {f"parts.{key}": getattr(estimate.parts, key) for key in PARTS}
        named |= {f"parts.hideable on {axis}": s for axis, s in estimate.parts.hideable}
        for early in estimate.parts.prefetched:
            what = f"parts.prefetched on {early.axis}, {early.direction}"
            named |= {f"{what}, hideable_s": early.hideable_s, f"{what}, covers_s": early.covers_s}
    named["operators"] = tuple(each.node for each in estimate.operators)
    for each in estimate.operators:
        keys = ("forward_s", "backward_s", "source", "forward_nbytes", "backward_nbytes")
        named |= {f"operator {each.node} {key}": getattr(each, key) for key in keys}
    for place, flow in enumerate(estimate.flows):
        what = f"flow {place} ({flow.collective} on {flow.axis}, {flow.direction}, {flow.scope})"
        named |= {f"{what} {key}": getattr(flow, key) for key in ("calls", "nbytes", "seconds")}
    return named


def _of_runtime(plan: Plan) -> Figures:
    return {"buckets": plan.buckets, "prefetch": plan.prefetch}


def _of_shares(shares: tuple[Share, ...]) -> Figures:
    return {
        f"share {place} ({share.axis}) {key}": getattr(share, key)
        for place, share in enumerate(shares)
        for key in ("flops", "stored", "used")
    }


def _memory(again: RecomputedFigures) -> Check:
    """Check that the estimate is within the memory limit, and that the bound is about that limit."""
    limit, nbytes = again.stated.asked.memory_limit, again.plan.estimate.memory_nbytes
    bound = again.stated.bound_nbytes
    faults = []
    if limit is not None and not nbytes <= limit:
        faults.append(f"memory_limit is {limit} bytes in the plan; a step needs {nbytes}")
    if bound is not None and bound != limit:
        faults.append(f"bound_nbytes is {bound} in the plan, but memory_limit is {limit}")
    of = "no limit was set" if limit is None else f"the limit is {limit:.0f}"
    return checked("memory", f"{nbytes} bytes; {of}", faults)
