"""Renders alternative plans of one model: one row each, with the fastest marked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from autopar.ir.units import nbytes, seconds
from autopar.plans.pipeline_plan import PipelinePlan, predicted_step_s
from autopar.plans.plan import Plan
from autopar.render.text.proof import gap
from autopar.render.text.table import line, table

Named = tuple[str, Plan | PipelinePlan | None, str]
"""Name, plan or None, and a remark: the reason if there is no plan."""
LONGEST = 220


def contenders(found: Sequence[Named], limit: float | None = None) -> RenderableType:
    """Return one table: step, increase over the fastest, compute, communication by axis, memory, gap.

    The gap is the distance from the lower bound for the best plan of the same kind.
    """
    axes = list(dict.fromkeys(axis for _, plan, _ in found for axis in _sent(plan)))
    columns = ("step", "more", "compute", *(f"on {axis}" for axis in axes), "memory", "gap")
    made = table("plans compared, on one rank", "plan", *columns, right=columns)
    fits = [(name, plan, why) for name, plan, why in found if _fits(plan, limit)]
    fastest = min((predicted_step_s(plan) for _, plan, _ in fits if plan is not None), default=0.0)
    for name, plan, why in found:
        if plan is None:
            line(made, name, 1, "none fits" if "fit" in why else "none")
        elif not _fits(plan, limit):
            line(made, name, 1, *_cells(plan, axes, math.inf)[:-1], "too large")
        else:
            line(made, name, 1, *_cells(plan, axes, fastest))
    remarks = [Text(f"{name}: {_short(why)}") for name, _, why in found if why]
    limited = (
        [] if limit in (None, math.inf) else [Text(f"the limit is {nbytes(limit)} per device")]
    )
    times = dict.fromkeys(str(p.times) for _, p, _ in found if p is not None and p.times)
    timed = [Text(f"operators: {each}, where available") for each in times]
    plans = [plan for _, plan, _ in found if isinstance(plan, Plan)]
    if any(plan.estimate.hidden_s > 0.0 for plan in plans):
        timed.append(Text("Steps exclude communication that is hidden behind compute."))
    return Group(made, "", *limited, *timed, Text(_sentence(fits)), *remarks)


def memory_of(plan: Plan | PipelinePlan) -> float:
    """Return the predicted peak bytes of the fullest rank."""
    return plan.outline.figures.get(("memory", "peak"), 0.0)


def _cells(plan: Plan | PipelinePlan, axes: Sequence[str], fastest: float) -> list[str]:
    step = predicted_step_s(plan)
    more = (
        ""
        if fastest == math.inf
        else "fastest"
        if step <= fastest
        else f"+{step / fastest - 1:.1%}"
    )
    if isinstance(plan, PipelinePlan):
        kind = f"{plan.schedule.stages} stages"
        return [seconds(step), more, kind, *[""] * len(axes), nbytes(memory_of(plan)), ""]
    sent, e = _sent(plan), plan.estimate
    by_axis = (seconds(sent[axis]) if axis in sent else "" for axis in axes)
    return [seconds(step), more, seconds(e.compute_s), *by_axis, nbytes(e.memory_nbytes),
            gap(plan.objective_s, plan.bound_s, plan.proof)]  # fmt: skip


def _fits(plan: Plan | PipelinePlan | None, limit: float | None) -> bool:
    return plan is None or limit is None or memory_of(plan) <= limit


def _sent(plan: Plan | PipelinePlan | None) -> dict[str, float]:
    """Return the seconds of communication by axis, hidden ones included."""
    found: defaultdict[str, float] = defaultdict(float)
    if isinstance(plan, Plan):
        for axis in plan.mesh.names:
            found[axis] = 0.0
        for flow in plan.estimate.flows:
            found[flow.axis] += flow.seconds
    return dict(found)


def _sentence(found: Sequence[Named]) -> str:
    """Return a sentence that compares the first plan with the best of the others."""
    steps = [(name, predicted_step_s(plan)) for name, plan, _ in found if plan is not None]
    if len(steps) < 2:
        return "No other plan fits."
    (first, mine), *others = steps
    name, theirs = min(others, key=lambda other: other[1])
    if abs(theirs - mine) <= 1e-9 * mine:
        return f"{name} is as fast as {first}."
    word = "slower" if theirs > mine else "faster"
    return f"The best of the others, {name}, is {abs(theirs / mine - 1):.1%} {word} than {first}."


def _short(why: str) -> str:
    first = why.splitlines()[0]
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 3]}..."
