"""What every other choice would cost, everything else decided anew."""

from __future__ import annotations

from autopar.errors import InfeasibleError
from autopar.solve.dominance import undecided
from autopar.solve.dual import best_within
from autopar.solve.marginals import marginals
from autopar.solve.network import Network
from autopar.solve.order import ordered
from autopar.solve.problem import Limits, Problem, limits_of
from autopar.solve.rows import Goal


def best_with_each_state(
    problem: Problem, variable: int, limits: Limits = None
) -> tuple[float, ...]:
    """Seconds of the best assignment for each state of one variable; all others are free.

    Where a limit binds or communication hides they are lower bounds: those of the multipliers that
    prove the best assignment.
    Raises `InfeasibleError` where nothing is allowed, and where tables would grow too large to tell.
    """
    left = undecided(Network.of(problem))
    order = ordered(left.network)
    if not order.is_exact:
        raise InfeasibleError(
            "The tables of this problem are too large to compare all alternatives. Constrain some "
            "tensors, or use fewer mesh axes."
        )
    goal = Goal.of(left.network, limits_of(limits))
    found = best_within(order, goal)
    if variable not in left.undecided:
        return (found.bound * left.network.tick_s,)
    place = left.undecided.index(variable)
    ticks = marginals(found.elimination).of_states[place] - goal.allowance(found.multipliers)
    return tuple((ticks * left.network.tick_s).tolist())
