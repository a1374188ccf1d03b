"""The same problem as an integer linear program, for OR-Tools: the referee of elimination.

For each variable v and state s a binary x[v, s], one of which is 1; for each finite entry e of a table
over several variables a y[e] >= 0, which agrees with x on each of them (the local polytope; Wainwright
and Jordan 2008, 4.1):

    minimise    sum u[v, s] x[v, s] + sum t[e] y[e]
    subject to  sum_s x[v, s] = 1
                sum_{e with s at v} y[e] = x[v, s]        for every table over v
                sum of bytes of a limit's load <= limit                   for every limit
                paid >= sum of uncovered seconds,  paid >= 0     (paid is minimised too)

The linear relaxation comes first: on graphs of small treewidth it is often integral, and then optimal.
Only where it is not, the binaries are branched on.

Bytes that exceed a limit by less than the solver's tolerance are cut off one by one.

The solvers calculate in float64 with tolerances of 1e-6 of the largest cost; the bound is lowered by
as much, so where costs are far apart it says less than elimination's, which is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from ortools.linear_solver.python import model_builder as mb

from autopar.errors import InfeasibleError, InternalError, PlanError
from autopar.solver.problem import (
    Assignment,
    Factor,
    Limit,
    Limits,
    Problem,
    Proof,
    limits_of,
)

RELAXATION, BRANCHING = "glop", "scip"
PACE = 25.0
"""Nodes in the time of one unit of the relaxation's deterministic work, which is about a second."""
TOLERANCE = 1e-6
"""How far a solver's optimum may be off, relative to the largest cost of the problem."""
Cover = dict[int, int]
"""States by variable that may not all be taken (a cover of a knapsack; Balas 1975)."""
MOST_COVERS = 50
INTEGRAL = 1e-6
"""How far from 0 or 1 a relaxed binary may be and still count as whole."""


def solve_ilp(problem: Problem, limits: Limits = None, nodes: int = 10_000) -> Assignment:
    """The best assignment that branching finds in so many nodes, with its own lower bound.

    Raises `InfeasibleError` where nothing is allowed or fits, or nothing was found.
    """
    relaxed = _Program(problem, limits_of(limits), whole=False)
    states, bound = relaxed.solve(RELAXATION, f"max_deterministic_time: {nodes / PACE}")
    proof: Proof = "branch" if states is None else "lp"
    most = f"limits/nodes = {nodes}"
    if states is None:
        states, bound = _Program(problem, limits_of(limits), whole=True).solve(BRANCHING, most)
    if states is None:
        raise InfeasibleError(f"The integer program found no assignment in {nodes} nodes.")
    given, covers = limits_of(limits), []
    while cover := _cover(problem, given, states):
        covers.append(cover)
        found, least = _Program(problem, given, whole=True, covers=covers).solve(BRANCHING, most)
        if found is None or len(covers) > MOST_COVERS:
            raise InfeasibleError(f"The integer program found no assignment in {nodes} nodes.")
        states, bound, proof = found, max(bound, least), "branch"
    cost = problem.seconds(states)
    return Assignment(states, cost, problem.nbytes(states), min(bound, cost), proof)


def _cover(problem: Problem, limits: Sequence[Limit], states: tuple[int, ...]) -> Cover:
    """What the solver's tolerances let through: states that together exceed a limit, if any do."""
    for limit in limits:
        if problem.load(states, limit.load) > limit.nbytes:
            return {
                index: states[index]
                for table in problem.tables
                for _, amount in limit.load.parts(table)
                if amount[table.at(states)] > 0
                for index in table.scope
            }
    return {}


class _Program:
    def __init__(
        self,
        problem: Problem,
        limits: Sequence[Limit],
        whole: bool,
        covers: Sequence[Cover] = (),
    ) -> None:
        self._problem = problem
        self._unit = _largest(problem)
        self._model = mb.Model()
        self._cost: list[mb.LinearExprT] = []
        self._limits = limits
        self._loads: list[list[mb.LinearExprT]] = [[] for _ in limits]
        self._uncovered: list[mb.LinearExprT] = []
        self._most_paid = 0.0
        unary = itertools.islice(problem.tables, len(problem.variables))
        self._x = [self._binaries(table, whole) for table in unary]
        for factor in problem.factors:
            self._add(factor)
        if self._uncovered:
            paid = self._model.new_num_var(0.0, self._most_paid, None)
            self._model.add(mb.LinearExpr.sum(self._uncovered) <= paid)
            self._cost.append(paid)
        self._model.minimize(mb.LinearExpr.sum(self._cost))
        for limit, load in zip(limits, self._loads, strict=True):
            unit = max(abs(limit.nbytes), 1.0)
            self._model.add(mb.LinearExpr.sum(load) * (1 / unit) <= limit.nbytes / unit)
        for cover in covers:
            together = mb.LinearExpr.sum([self._x[v][state] for v, state in cover.items()])
            self._model.add(together <= len(cover) - 1.0)

    def _binaries(self, variable: Factor, whole: bool) -> list[mb.Variable]:
        made = [
            self._model.new_var(0.0, 1.0 if math.isfinite(cost) else 0.0, whole, None)
            for cost in variable.seconds
        ]
        self._charge(made, variable, (slice(None),))
        self._model.add(mb.LinearExpr.sum(made) == 1.0)
        return made

    def _charge(self, made: Sequence[mb.Variable], table: Factor, at: tuple[Any, ...]) -> None:
        """Add what the entries of a table at these places cost, one per variable that was made."""
        seconds = table.seconds[at]
        finite = np.where(np.isfinite(seconds), seconds, 0.0) / self._unit
        self._cost.append(mb.LinearExpr.weighted_sum(made, finite.tolist()))
        for limit, load in zip(self._limits, self._loads, strict=True):
            for weight, nbytes in limit.load.parts(table):
                if nbytes.any():
                    counted = (weight * nbytes[at]).tolist()
                    load.append(mb.LinearExpr.weighted_sum(made, counted))
        if table.uncovered is not None and table.uncovered.any():
            hideable = table.uncovered[at] / self._unit
            self._uncovered.append(mb.LinearExpr.weighted_sum(made, hideable.tolist()))
            self._most_paid += max(0.0, float(hideable.max()))

    def _add(self, factor: Factor) -> None:
        entries = np.argwhere(np.isfinite(factor.seconds))
        at = tuple(entries.T)
        made = [self._model.new_num_var(0.0, 1.0, None) for _ in entries]
        self._charge(made, factor, at)
        for place, index in enumerate(factor.scope):
            for state, x in enumerate(self._x[index]):
                agreeing = [made[i] for i in np.flatnonzero(entries[:, place] == state)]
                self._model.add(mb.LinearExpr.sum(agreeing) == x)

    def solve(self, backend: str, parameters: str) -> tuple[tuple[int, ...] | None, float]:
        """States where the result is whole, and a lower bound; `InfeasibleError` where none can be.

        `parameters` are the solver's own, among them how much work it may do.
        """
        solver = mb.Solver(backend)
        if not solver.solver_is_supported():
            raise InternalError(f"This OR-Tools has no {backend}.")
        solver.set_solver_specific_parameters(parameters)
        status = solver.solve(self._model)
        if status == mb.SolveStatus.INFEASIBLE:
            raise InfeasibleError("No combination of candidates is allowed, or none fits.")
        if status == mb.SolveStatus.ABNORMAL and backend == RELAXATION:
            return None, -math.inf  # numbers too far apart for it: branching has the last word
        if status in (mb.SolveStatus.MODEL_INVALID, mb.SolveStatus.ABNORMAL):
            raise PlanError(
                f"{backend} cannot work with the numbers of this problem ({status.name}): they are too "
                "large, or too far apart."
            )
        if status not in (mb.SolveStatus.OPTIMAL, mb.SolveStatus.FEASIBLE):
            return None, -math.inf
        if backend == RELAXATION and status != mb.SolveStatus.OPTIMAL:
            return None, -math.inf  # it was ended: its objective is no bound
        values = [[solver.value(x) for x in row] for row in self._x]
        bound = solver.best_objective_bound if backend == BRANCHING else solver.objective_value
        bound -= TOLERANCE
        if any(max(row) < 1.0 - INTEGRAL for row in values):
            return None, bound * self._unit
        return tuple(int(np.argmax(row)) for row in values), bound * self._unit


def _largest(problem: Problem) -> float:
    """The unit in which solvers see costs: their tolerances are absolute."""
    seconds = [table.seconds for table in problem.tables]
    tables = [*seconds, *(t.uncovered for t in problem.tables if t.uncovered is not None)]
    finite = [float(np.abs(table[np.isfinite(table)]).max(initial=0.0)) for table in tables]
    return max([*finite, 1e-30])
