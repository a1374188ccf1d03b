"""Replays a plan's step from its file alone, optionally under other conditions: timeline and memory.

A plan without stages has totals per kind but no order in time: within forward and backward, compute and
collectives are spread evenly.  A pipeline's step is simulated action by action.
"""

from __future__ import annotations

from autopar.explain.replay.conditions import AS_PLANNED, MOST_MICROBATCHES, Conditions
from autopar.explain.replay.flows import refuse_other
from autopar.explain.replay.played import Played, Row, Span
from autopar.explain.replay.staged import play_stages
from autopar.explain.replay.trace import trace_of
from autopar.explain.replay.whole import play_whole
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from cost_models.hardware import Hardware

__all__ = [
    "AS_PLANNED", "MOST_MICROBATCHES", "Conditions", "Played", "Row", "Span",
    "play", "refuse_other", "trace_of",
]  # fmt: skip


def play(
    plan: Plan | PipelinePlan, conditions: Conditions = AS_PLANNED, hardware: Hardware | None = None
) -> Played:
    """Return the replayed step.

    Another bandwidth requires the `hardware` that priced the plan, unless it is a shipped profile.
    Raises `PlanError` if the file lacks data, `InputError` for conditions with unknown names.
    """
    if isinstance(plan, PipelinePlan):
        return play_stages(plan, conditions, hardware)
    return play_whole(plan, conditions, hardware)
