"""The solver's problem as plain arrays: no torch, no meshes, no names of parallelisms.

Choose one state per variable so that the sum of all unary costs and all factor tables is least, and
the sum of all bytes stays within a limit.  It can be written by hand, saved and brute-forced.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.errors import PlanError

Array = NDArray[np.float64]


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
        """Raise `PlanError` unless shapes agree and no cost is NaN or negative infinity."""
        for variable in self.variables:
            if variable.size == 0 or variable.nbytes.shape != variable.seconds.shape:
                raise PlanError(f"Variable {variable.name!r} needs equally many seconds and bytes.")
            if not np.all(np.isfinite(variable.nbytes)) or np.any(np.isnan(variable.seconds)):
                raise PlanError(f"Variable {variable.name!r} has a cost that is not a number.")
        for factor in self.factors:
            if any(not 0 <= index < len(self.variables) for index in factor.scope):
                raise PlanError(f"Factor {factor.scope} refers to a variable that does not exist.")
            shape = tuple(self.variables[index].size for index in factor.scope)
            if len(set(factor.scope)) != len(factor.scope) or factor.seconds.shape != shape:
                raise PlanError(
                    f"Factor {factor.scope} has a table {factor.seconds.shape}, not {shape}."
                )
            if factor.nbytes is not None and factor.nbytes.shape != shape:
                raise PlanError(
                    f"Factor {factor.scope} has bytes {factor.nbytes.shape}, not {shape}."
                )
            if np.any(np.isnan(factor.seconds)) or np.any(np.isneginf(factor.seconds)):
                raise PlanError(f"Factor {factor.scope} has a cost that is not a number.")

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

    def to_json(self) -> str:
        """The problem as text; infinities are written as null."""
        return json.dumps(
            {
                "variables": [
                    {"name": v.name, "seconds": _plain(v.seconds), "nbytes": _plain(v.nbytes)}
                    for v in self.variables
                ],
                "factors": [
                    {
                        "scope": list(f.scope),
                        "seconds": _plain(f.seconds),
                        "nbytes": None if f.nbytes is None else _plain(f.nbytes),
                    }
                    for f in self.factors
                ],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """Read a problem; raise `PlanError` where it is malformed."""
        try:
            data = json.loads(text)
            variables = tuple(
                Variable(str(v["name"]), _array(v["seconds"]), _array(v["nbytes"]))
                for v in data["variables"]
            )
            factors = tuple(
                Factor(
                    tuple(map(int, f["scope"])),
                    _array(f["seconds"]),
                    None if f.get("nbytes") is None else _array(f["nbytes"]),
                )
                for f in data["factors"]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError(f"This is not a problem that autopar can read: {error!r}.") from None
        problem = cls(variables, factors)
        problem.check()
        return problem


@dataclass(frozen=True)
class Assignment:
    """A solver's answer: one state per variable, its cost, and a proven lower bound on any answer."""

    states: tuple[int, ...]
    seconds: float
    nbytes: float
    bound_s: float


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
    return Assignment(states, least, problem.nbytes(states), least)


def _plain(array: Array) -> object:
    boxed = array.astype(object)
    boxed[np.isposinf(array)] = None
    plain: object = boxed.tolist()
    return plain


def _array(values: object) -> Array:
    boxed = np.array(values, dtype=object)
    boxed[boxed == np.array(None)] = np.inf
    return boxed.astype(np.float64)
