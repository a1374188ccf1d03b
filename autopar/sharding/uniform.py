"""Plans whose weights all travel alike, against one that sends more messages than its sum pays for.

The sum that the solver minimises charges each weight its part of a gather or a bucket, by its bytes,
whatever the other weights do.  Where they go different ways there are more messages than that, and
the predicted step, which counts them, is longer than the sum.  Then the plans that people would write
may be faster: with whole weights, or with weights that are gathered once a step.
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
"""Times the sum: where the prediction is not longer than that, there are few messages more."""
Way = Callable[[Storage], bool]


def shortest(posed: ShardingProblem, best: Plan) -> Plan:
    """The plan with the shortest predicted step: `best`, or one in whose step all weights travel alike.

    Its bound is that of all plans, so its own sum may lie above the least one.
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
        # What operators are asked for may leave no room for this way.
        with suppress(InfeasibleError):
            plan = narrowed.plan(narrowed.solve())
            yield replace(plan, bound_s=best.bound_s, proof=best.proof, search=best.search)


def _is_whole(storage: Storage) -> bool:
    return _is_gathered_once(storage) and not storage.stored.is_split


def _is_gathered_once(storage: Storage) -> bool:
    return all(letter == R for letter in storage.leaf)
