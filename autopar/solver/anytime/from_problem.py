"""A `Problem` with limits on sums as a `TimedProblem`: each limit holds at a time of its own."""

from __future__ import annotations

import numpy as np

from autopar.errors import InfeasibleError, PlanError
from autopar.solver.anytime.timed_problem import Array, Pair, Span, TimedProblem
from autopar.solver.problem import Factor, Limit, Limits, Problem, limits_of


def from_problem(problem: Problem, limits: Limits = None) -> TimedProblem:
    """Return the timed problem; its first variables are those of the problem, in their order.

    A factor over more than two variables, or with bytes, becomes a variable: its states are the
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
    for index, variable in enumerate(problem.variables):
        spans += _spans(index, variable.nbytes, variable.kept, given)
    for factor in problem.factors:
        if len(factor.scope) == 2 and factor.nbytes is None and factor.kept is None:
            pairs.append(Pair(*factor.scope, factor.seconds))
        else:
            _add(factor, given, costs, pairs, spans)
    most = np.array([limit.nbytes for limit in given], dtype=np.float64)
    found = TimedProblem(tuple(costs), tuple(pairs), tuple(spans), most)
    found.check()
    return found


def _add(
    factor: Factor,
    limits: tuple[Limit, ...],
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
    nbytes = np.zeros(len(places)) if factor.nbytes is None else factor.nbytes[allowed]
    kept = None if factor.kept is None else factor.kept[allowed]
    spans += _spans(index, nbytes, kept, limits)


def _spans(index: int, nbytes: Array, kept: Array | None, limits: tuple[Limit, ...]) -> list[Span]:
    """The bytes that a variable adds to each limit's sum."""
    found = []
    for time, limit in enumerate(limits):
        held = nbytes if kept is None else nbytes + limit.in_flight * kept
        if np.any(held > 0):
            found.append(Span(index, time, time + 1, held))
    return found
