"""Certifies a plan: recomputes every number and every claim in it from the model.

The checks are made in four steps, each of which requires that the previous one passed:

    model and prices match the plan's            graph, hardware, optimizer, structure
    decisions are valid candidates               types, constraints
    derived conversions match                    conversions
    numbers and lower bound match                estimate, shares, memory, objective, search, bound

The lower bound is checked by posing and solving the problem again.
"""

from __future__ import annotations

from autopar.plans.plan import Plan
from autopar.sharding.in_flight import COARSE
from autopar.sharding.sharding_problem import ShardingProblem
from autopar.verify.bound import bounds
from autopar.verify.check import Check
from autopar.verify.decisions import allowed, belongs, follows
from autopar.verify.figures import figures
from autopar.verify.recomputed import RecomputedFigures

__all__ = ["Check", "certify"]


def certify(
    plan: Plan, posed: ShardingProblem, bound: bool = True, is_stage: bool = False
) -> tuple[Check, ...]:
    """Return all checks of a plan, up to the first step in which one fails.

    `posed` is the problem that the plan solves.  Without `bound` nothing is solved again and the bound
    is only compared with the objective.  The bound of a stage (`is_stage`) may be slightly lower than
    what can be proved: it was shared by several stages and computed with less effort (`COARSE`).
    """
    again = RecomputedFigures(plan, posed)
    checks: list[Check] = []
    for step in (belongs, allowed, follows, figures):
        checks += step(again)
        if not all(check.ok for check in checks):
            return tuple(checks)
    return (*checks, *bounds(again, bound, COARSE if is_stage else 0.0))
