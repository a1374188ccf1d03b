"""Compares the best plan with plans that communicate all weights in the same way.

The sum that the solver minimises charges each weight its part, by bytes, of a gather or a bucket,
independently of the other weights.  If these are communicated in different ways there are more messages
than that, and the predicted step, which counts them, is longer than the sum.  Then the plans that people
would write may be faster: replicated weights, or weights that are gathered once per step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from autopar.cost.parameters import Storage
from autopar.errors import InfeasibleError
from autopar.ir.placement import R
from autopar.plans.plan import Plan
from autopar.sharding.sharding_problem import ShardingProblem

LONGER = 1.005
"""Ratio of predicted step to sum up to which there are few additional messages."""
Way = Callable[[Storage], bool]


def shortest(posed: ShardingProblem, best: Plan) -> Plan:
    """Return `best`, or a plan with all weights communicated in the same way if its step is shorter.

    The bound stays that of all plans, so the plan's own sum may lie above the least one.
    """
    if best.estimate.step_s <= LONGER * best.objective_s:
        return best
    every = (best, *_uniform(posed, best))
    return min(every, key=lambda plan: (plan.estimate.step_s, plan.objective_s))


def _uniform(posed: ShardingProblem, best: Plan) -> Iterator[Plan]:
    for way in (_is_whole, _is_gathered_once):
        states = {
            name: frozenset(state for state, storage in enumerate(options) if way(storage))
            for name, options in posed.priced.candidates.parameters.items()
        }
        if not all(states.values()):
            continue
        narrowed = replace(posed, priced=posed.priced.only(states))
        # The constraints on operators may exclude this way.
        with suppress(InfeasibleError):
            plan = narrowed.plan(narrowed.solve())
            yield replace(plan, bound_s=best.bound_s, proof=best.proof, search=best.search)


def _is_whole(storage: Storage) -> bool:
    return _is_gathered_once(storage) and not storage.stored.is_split


def _is_gathered_once(storage: Storage) -> bool:
    return all(letter == R for letter in storage.leaf)
