"""The solver's problem as plain arrays: no torch, no meshes, no names of parallelisms.

Choose one state per variable so that the sum of all unary costs and all factor tables is least, and
the sum of all bytes stays within a limit.  It can be written by hand, saved and brute-forced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autopar.errors import PlanError

Array = NDArray[np.float64]
MOST_BYTES = float(2**53)
"""More cannot be counted exactly in float64."""

Proof = Literal[
    "elimination",
    "mini-buckets",
    "lagrange",
    "pareto",
    "hull",
    "lp",
    "branch",
    "brute force",
    "none",
]
"""How a lower bound was got.

elimination   the optimum of all assignments
mini-buckets  the optimum of a relaxation: tables that would grow too large are minimised in parts
lagrange      weak duality: the optimum with a price per byte, less the price of the limit
pareto        the optimum within a limit, from all (seconds, bytes) that nothing beats
hull          `lagrange`, the limit being the assignment's own bytes
lp, branch    integer programming: the linear relaxation was whole, or was branched on
brute force   every assignment was looked at
none          no solver has spoken; costs are not negative
"""


@dataclass(frozen=True, eq=False)
class Variable:
    """A decision with `len(seconds)` states; each state costs seconds and bytes."""

    name: str
    seconds: Array
    nbytes: Array

    @property
    def size(self) -> int:
        """Number of states."""
        return len(self.seconds)


@dataclass(frozen=True, eq=False)
class Factor:
    """Seconds and bytes that depend on several variables' states; infinite seconds forbid."""

    scope: tuple[int, ...]
    seconds: Array
    nbytes: Array | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """min  sum_i v_i[x_i] + sum_f table_f[x_scope(f)]   subject to   sum_i bytes_i[x_i] <= limit."""

    variables: tuple[Variable, ...]
    factors: tuple[Factor, ...]

    def check(self) -> None:
        """Raise `PlanError` unless shapes agree, costs are numbers or infinite, and bytes count up."""
        for variable in self.variables:
            what = f"Variable {variable.name!r}"
            if variable.seconds.ndim != 1 or variable.size == 0:
                raise PlanError(
                    f"{what} needs a list of seconds, one per state, not {variable.seconds}."
                )
            if variable.nbytes.shape != variable.seconds.shape:
                raise PlanError(f"{what} needs equally many seconds and bytes.")
            _check_costs(what, variable.seconds, variable.nbytes)
        for factor in self.factors:
            what = f"Factor {factor.scope}"
            if any(not 0 <= index < len(self.variables) for index in factor.scope):
                raise PlanError(f"{what} refers to a variable that does not exist.")
            shape = tuple(self.variables[index].size for index in factor.scope)
            if len(set(factor.scope)) != len(factor.scope) or factor.seconds.shape != shape:
                raise PlanError(f"{what} has a table {factor.seconds.shape}, not {shape}.")
            if factor.nbytes is not None and factor.nbytes.shape != shape:
                raise PlanError(f"{what} has bytes {factor.nbytes.shape}, not {shape}.")
            _check_costs(what, factor.seconds, factor.nbytes)

    def seconds(self, states: tuple[int, ...]) -> float:
        """The objective of one assignment."""
        unary = sum(v.seconds[state] for v, state in zip(self.variables, states, strict=True))
        tables = sum(f.seconds[tuple(states[i] for i in f.scope)] for f in self.factors)
        return float(unary + tables)

    def nbytes(self, states: tuple[int, ...]) -> float:
        """The bytes of one assignment."""
        unary = sum(v.nbytes[state] for v, state in zip(self.variables, states, strict=True))
        tables = sum(
            f.nbytes[tuple(states[i] for i in f.scope)]
            for f in self.factors
            if f.nbytes is not None
        )
        return float(unary + tables)


@dataclass(frozen=True)
class Assignment:
    """A solver's answer: one state per variable, its cost, and a proven lower bound on any answer.

    `left` counts the variables that still had a choice after pruning, and their states.
    """

    states: tuple[int, ...]
    seconds: float
    nbytes: float
    bound_s: float
    proof: Proof
    left: tuple[int, int] = (0, 0)


def brute_force(problem: Problem, limit: float = np.inf) -> Assignment | None:
    """The optimum by adding up every table over all states: the referee on small problems."""
    sizes = [variable.size for variable in problem.variables]
    seconds, nbytes = np.zeros(sizes), np.zeros(sizes)
    unary = [Factor((i,), v.seconds, v.nbytes) for i, v in enumerate(problem.variables)]
    for factor in (*unary, *problem.factors):
        order = np.argsort(factor.scope)
        shape = [size if i in factor.scope else 1 for i, size in enumerate(sizes)]
        seconds += factor.seconds.transpose(order).reshape(shape)
        if factor.nbytes is not None:
            nbytes += factor.nbytes.transpose(order).reshape(shape)
    allowed = np.where(nbytes <= limit, seconds, np.inf)
    best = np.unravel_index(int(allowed.argmin()), allowed.shape)
    if not np.isfinite(allowed[best]):
        return None
    states = tuple(map(int, best))
    least = problem.seconds(states)
    return Assignment(states, least, problem.nbytes(states), least, "brute force")


def _check_costs(what: str, seconds: Array, nbytes: Array | None) -> None:
    if np.any(np.isnan(seconds)) or np.any(np.isneginf(seconds)):
        raise PlanError(f"{what} has a cost that is not a number.")
    if nbytes is not None and not np.all((nbytes >= 0) & (nbytes <= MOST_BYTES)):
        raise PlanError(f"{what} has bytes that are not between 0 and 2^53.")
