"""The solver's problem as plain arrays: no torch, no meshes, no names of parallelisms.

Choose one state per variable so that the sum of all unary costs and all factor tables is least, and
the sum of all bytes stays within a limit.  It can be written by hand, saved and brute-forced.

Some communication runs beside compute.  It counts as *uncovered* seconds, the compute that can hide it
as negative ones; of their sum only what is above zero is paid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
lagrange      weak duality: the optimum with a price per byte, less the price of the limit; or with a
              share of the communication hidden
pareto        the optimum within a limit, from all (seconds, bytes) that nothing beats
hull          `lagrange`, the limit being the assignment's own bytes
lp, branch    integer programming: the linear relaxation was whole, or was branched on
brute force   every assignment was looked at
none          no solver has spoken; costs are not negative
"""


@dataclass(frozen=True, eq=False)
class Variable:
    """A decision with `len(seconds)` states; each state costs seconds and bytes.

    `uncovered`: seconds that hide behind other states' negative ones (None: zeros).
    """

    name: str
    seconds: Array
    nbytes: Array
    uncovered: Array | None = None

    @property
    def size(self) -> int:
        """Number of states."""
        return len(self.seconds)


@dataclass(frozen=True, eq=False)
class Factor:
    """What depends on several variables' states; infinite seconds forbid, None stands for zeros."""

    scope: tuple[int, ...]
    seconds: Array
    nbytes: Array | None = None
    uncovered: Array | None = None

    def at(self, states: Sequence[int]) -> tuple[int, ...]:
        """The place in the tables of an assignment of all variables."""
        return tuple(states[index] for index in self.scope)


@dataclass(frozen=True, eq=False)
class Problem:
    """min  sum seconds[x] + max(0, sum uncovered[x])   subject to   sum bytes[x] <= limit.

    Each sum runs over all variables, at their states, and all factors, at those of their scope.
    """

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
            _check_uncovered(what, variable.uncovered, variable.seconds.shape)
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
            _check_uncovered(what, factor.uncovered, factor.seconds.shape)

    @property
    def tables(self) -> Iterator[Factor]:
        """Everything that is added up: variables as factors over themselves, and the factors."""
        for index, v in enumerate(self.variables):
            yield Factor((index,), v.seconds, v.nbytes, v.uncovered)
        yield from self.factors

    def seconds(self, states: tuple[int, ...]) -> float:
        """The objective of one assignment."""
        visible = sum(t.seconds[t.at(states)] for t in self.tables)
        return float(visible) + max(0.0, self.uncovered(states))

    def uncovered(self, states: tuple[int, ...]) -> float:
        """Seconds of hideable communication beyond the compute that can hide it; negative: spare."""
        return float(sum(t.uncovered[t.at(states)] for t in self.tables if t.uncovered is not None))

    def nbytes(self, states: tuple[int, ...]) -> float:
        """The bytes of one assignment."""
        return float(sum(t.nbytes[t.at(states)] for t in self.tables if t.nbytes is not None))


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
    seconds, nbytes, uncovered = np.zeros(sizes), np.zeros(sizes), np.zeros(sizes)
    for factor in problem.tables:
        order = np.argsort(factor.scope)
        shape = [size if i in factor.scope else 1 for i, size in enumerate(sizes)]
        seconds += factor.seconds.transpose(order).reshape(shape)
        if factor.nbytes is not None:
            nbytes += factor.nbytes.transpose(order).reshape(shape)
        if factor.uncovered is not None:
            uncovered += factor.uncovered.transpose(order).reshape(shape)
    seconds += np.maximum(uncovered, 0.0)
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


def _check_uncovered(what: str, uncovered: Array | None, shape: tuple[int, ...]) -> None:
    if uncovered is None:
        return
    if uncovered.shape != shape:
        raise PlanError(f"{what} has uncovered seconds {uncovered.shape}, not {shape}.")
    if not np.all(np.isfinite(uncovered)):
        raise PlanError(f"{what} has uncovered seconds that are not finite.")
