"""A plan checked from nothing: every figure and every claim in it is computed again from the model.

The checks come in four steps, and each needs what the one before it found to be right:

    the model and the prices are the plan's      graph, hardware, optimizer, structure
    every decision was allowed                   types, constraints
    what follows from decisions is what is said  conversions
    figures, and the bound                       estimate, shares, memory, objective, search, bound

A bound is not believed: the problem is posed and solved again.
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
    """All checks of a plan, up to the step in which one fails.

    `posed` is the problem that the plan answers.  Without `bound` nothing is solved: then the bound
    is only compared with the objective.  That of a stage may be a little lower than what can be proved:
    it served several, and was not sought for longer than a stage is worth (`COARSE`).
    """
    again = RecomputedFigures(plan, posed)
    checks: list[Check] = []
    for step in (belongs, allowed, follows, figures):
        checks += step(again)
        if not all(check.ok for check in checks):
            return tuple(checks)
    return (*checks, *bounds(again, bound, COARSE if is_stage else 0.0))
