"""A plan's predicted numbers per microbatch, including a share of the work done once per step."""

from __future__ import annotations

from dataclasses import replace

from autopar.cost.spent import once
from autopar.plans.plan import Plan
from autopar.sharding.sharding_problem import ShardingProblem


def averaged(plan: Plan, posed: ShardingProblem) -> Plan:
    """Return the plan as the solver counts a stage; the plan itself if a step is one microbatch."""
    if posed.prices.microbatches == 1:
        return plan
    share = 1.0 / posed.prices.microbatches
    found = plan.estimate
    of_step = once(posed.graph, plan.parameters, posed.prices, plan.precision)
    sent_s = sum(flow.seconds for flow in found.flows if flow.scope == "step")
    computed_s = of_step.exposed_s + of_step.hideable_s - sent_s
    flows = tuple(
        replace(flow, seconds=share * flow.seconds) if flow.scope == "step" else flow
        for flow in found.flows
    )
    hidden_s = share * found.hidden_s
    return replace(
        plan,
        estimate=replace(
            found,
            compute_s=found.compute_s + (1.0 - share) * (of_step.summed_s - computed_s),
            exposed_s=sum(flow.seconds for flow in flows) - hidden_s,
            hidden_s=hidden_s,
            flows=flows,
        ),
    )
