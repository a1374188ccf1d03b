"""A plan's step played again from its file alone, perhaps under other conditions: timeline and memory.

What is known of a plan without stages is how much each kind takes, not when: within forward and
backward, compute and collectives are drawn evenly.  A pipeline's step is simulated action by action.
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
    """The step.  Another bandwidth needs the `hardware` that the plan was priced for, unless autopar has
    one of its name.

    Raises `PlanError` where the file does not hold enough, `InputError` for conditions that name
    what there is not.
    """
    if isinstance(plan, PipelinePlan):
        return play_stages(plan, conditions, hardware)
    return play_whole(plan, conditions, hardware)
