"""A `Problem` with limits as a `TimedProblem`: each limit holds at a time of its own."""

from __future__ import annotations

import itertools

import numpy as np

from autopar.errors import InfeasibleError, PlanError
from autopar.solver.anytime.timed_problem import Array, Pair, Span, TimedProblem
from autopar.solver.problem import Factor, Limit, Limits, Problem, limits_of


def from_problem(problem: Problem, limits: Limits = None) -> TimedProblem:
    """Return the timed problem; its first variables are those of the problem, in their order.

    A factor over more than two variables, or with limited bytes, becomes a variable: its states are the
    combinations that are not forbidden, and a pair with each variable of its scope says which.
    Raises `PlanError` for uncovered seconds, which are no sum, and for costs beyond `MOST`.
    """
    if any(table.uncovered is not None and np.any(table.uncovered) for table in problem.tables):
        raise PlanError(
            "The problem has `uncovered` seconds, which hide behind others: --seconds cannot weigh "
            "them. Leave --seconds out."
        )
    given = limits_of(limits)
    costs = [variable.seconds for variable in problem.variables]
    pairs: list[Pair] = []
    spans: list[Span] = []
    for table in itertools.islice(problem.tables, len(costs)):
        spans += _spans(table.scope[0], _loads(table, given))
    for factor in problem.factors:
        loads = _loads(factor, given)
        if len(factor.scope) == 2 and not any(load.any() for load in loads):
            pairs.append(Pair(*factor.scope, factor.seconds))
        else:
            _add(factor, loads, costs, pairs, spans)
    most = np.array([limit.nbytes for limit in given], dtype=np.float64)
    found = TimedProblem(tuple(costs), tuple(pairs), tuple(spans), most)
    found.check()
    return found


def _add(
    factor: Factor,
    loads: list[Array],
    costs: list[Array],
    pairs: list[Pair],
    spans: list[Span],
) -> None:
    """Add a variable for the combinations that a factor allows."""
    allowed = np.isfinite(factor.seconds)
    places = np.argwhere(allowed)
    if len(places) == 0:
        raise InfeasibleError(f"Factor {factor.scope} forbids everything.")
    index = len(costs)
    costs.append(factor.seconds[allowed])
    for dim, variable in enumerate(factor.scope):
        table = np.full((len(places), factor.seconds.shape[dim]), np.inf)
        table[np.arange(len(places)), places[:, dim]] = 0.0
        pairs.append(Pair(index, variable, table))
    spans += _spans(index, [load[allowed] for load in loads])


def _loads(table: Factor, limits: tuple[Limit, ...]) -> list[Array]:
    """What a table adds to each limit's sum."""
    zeros = np.zeros(table.seconds.shape)
    return [sum((w * part for w, part in limit.load.parts(table)), zeros) for limit in limits]


def _spans(index: int, loads: list[Array]) -> list[Span]:
    """The bytes that a variable adds to each limit's sum, at that limit's time."""
    return [Span(index, time, time + 1, load) for time, load in enumerate(loads) if np.any(load)]
