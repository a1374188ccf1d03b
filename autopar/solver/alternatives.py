"""What every other choice would cost, everything else decided anew."""

from __future__ import annotations

import numpy as np

from autopar.solver.dominance import undecided
from autopar.solver.dual import best_within
from autopar.solver.elimination import Elimination
from autopar.solver.marginals import marginals
from autopar.solver.network import Network
from autopar.solver.order import ordered
from autopar.solver.problem import Array, Limits, Problem, limits_of, loads_of
from autopar.solver.rows import Goal


def best_with_each_state(
    problem: Problem, variable: int, limits: Limits = None
) -> tuple[float, ...]:
    """Seconds of the best assignment for each state of one variable; all others are free.

    Where a limit binds or communication hides they are lower bounds: those of the multipliers that
    prove the best assignment.  So they are where tables would grow too large: those of mini-buckets.
    Raises `InfeasibleError` where nothing is allowed.
    """
    left = undecided(Network.of(problem, loads_of(limits)))
    goal = Goal.of(left.network, limits_of(limits))
    order = ordered(left.network)
    if variable not in left.undecided:
        return (best_within(order, goal).bound * left.network.tick_s,)
    place = left.undecided.index(variable)
    if order.is_exact:
        found = best_within(order, goal)
        of_states = marginals(found.elimination).of_states[place]
    else:
        found = best_within(ordered(left.network, last=place), goal)
        of_states = _of_last(found.elimination)
    ticks = of_states - goal.allowance(found.multipliers)
    return tuple((ticks * left.network.tick_s).tolist())


def _of_last(found: Elimination) -> Array:
    """A bound for each state of the variable that was eliminated last: nothing but it is left then."""
    order = found.order
    (group,) = order.buckets[-1].groups
    own = np.sum([found.values[order.messages[number].content] for number in group], axis=0)
    bounds: Array = found.bound - own.min() + own
    return bounds
