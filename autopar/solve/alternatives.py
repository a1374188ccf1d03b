"""What every other choice would cost, everything else decided anew."""

from __future__ import annotations

import numpy as np

from autopar.errors import InfeasibleError
from autopar.problem import Limits, Problem, limits_of
from autopar.solve.dominance import undecided
from autopar.solve.dual import best_within
from autopar.solve.elimination import eliminate
from autopar.solve.marginals import marginals
from autopar.solve.network import Network
from autopar.solve.order import Order, ordered
from autopar.solve.rows import Goal


def best_with_each_state(
    problem: Problem, variable: int, limits: Limits = None
) -> tuple[float, ...]:
    """Seconds of the best assignment for each state of one variable; all others are free.

    Where a limit binds or communication hides they are lower bounds: the highest of a few.
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
    bounds = [_at(order, goal, place, each) for each in _multipliers(goal, found.multipliers)]
    return tuple((np.max(bounds, axis=0) * left.network.tick_s).tolist())


def _multipliers(goal: Goal, best: tuple[float, ...]) -> set[tuple[float, ...]]:
    """Those of the best bound, and the same with everything hidden, and with nothing hidden."""
    ends = {best}
    for place, row in enumerate(goal.rows):
        if not row.is_limit:
            ends |= {(*best[:place], end, *best[place + 1 :]) for end in (0.0, row.dearest)}
    return ends


def _at(order: Order, goal: Goal, place: int, multipliers: tuple[float, ...]) -> list[float]:
    found = marginals(eliminate(order, goal.priced(multipliers)))
    ticks: list[float] = (found.of_states[place] - goal.allowance(multipliers)).tolist()
    return ticks
