"""Problems as JSON: numbers only, no unknown keys, and errors that name the place."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autopar.errors import PlanError
from autopar.solver.problem import Array, Factor, Problem, TimedBytes, Variable
from autopar.utils.io import first_fault

DEEPEST = 16
"""Dims of a table that is written by hand."""
Cost = float | None
"""Seconds; null is infinity."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)


class _TimedBytes(_Strict):
    start: Annotated[int, Field(ge=0)]
    stop: Annotated[int, Field(ge=0)]
    nbytes: list[object]


class _Variable(_Strict):
    name: str
    seconds: Annotated[list[Cost], Field(min_length=1)]
    nbytes: list[float] | None = None
    uncovered: list[float] | None = None
    kept: list[float] | None = None
    timed: list[_TimedBytes] | None = None


class _Factor(_Strict):
    scope: Annotated[list[int], Field(min_length=1)]
    seconds: list[object]
    nbytes: list[object] | None = None
    uncovered: list[object] | None = None
    kept: list[object] | None = None
    timed: list[_TimedBytes] | None = None


class _Problem(_Strict):
    variables: list[_Variable]
    factors: list[_Factor] = []


def to_json(problem: Problem) -> str:
    """The problem as text; infinities are written as null, and zeros that may be left out are."""
    return json.dumps(
        {
            "variables": [{"name": v.name, **_tables(v)} for v in problem.variables],
            "factors": [{"scope": list(f.scope), **_tables(f)} for f in problem.factors],
        }
    )


def _tables(of: Variable | Factor) -> dict[str, object]:
    """The tables that are there, by name."""
    every = {name: getattr(of, name) for name in ("seconds", "nbytes", "uncovered", "kept")}
    found = {name: _plain(table) for name, table in every.items() if table is not None}
    if of.timed is not None:
        found["timed"] = [
            {"start": each.start, "stop": each.stop, "nbytes": _plain(each.nbytes)}
            for each in of.timed
        ]
    return found


def from_json(text: str, source: str = "this text") -> Problem:
    """Read and check a problem; `PlanError` names `source`, what is wrong and where."""
    try:
        data = _Problem.model_validate_json(text)
    except ValidationError as error:
        raise PlanError(
            f"{source} is not a problem: {first_fault(error)}. docs/solver.md says what one is; "
            "`autopar plan --problem FILE` writes one."
        ) from None
    try:
        _check_names(data)
        problem = _problem(data)
        problem.check()
    except PlanError as error:
        raise PlanError(f"{source}: {error}") from None
    return problem


def _check_names(data: _Problem) -> None:
    """Raise `PlanError` where two variables have one name, by which answers are told apart."""
    counts = Counter(variable.name for variable in data.variables)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise PlanError(f"Two variables are called {twice[0]!r}.")


def _problem(data: _Problem) -> Problem:
    """The same as arrays."""
    return Problem(
        tuple(
            Variable(
                v.name,
                _array(v.seconds),
                _or_zeros(v.nbytes, len(v.seconds)),
                _or_none(v.uncovered),
                _or_none(v.kept),
                _timed(v.timed),
            )
            for v in data.variables
        ),
        tuple(
            Factor(
                tuple(f.scope),
                _array(f.seconds),
                _or_none(f.nbytes),
                _or_none(f.uncovered),
                _or_none(f.kept),
                _timed(f.timed),
            )
            for f in data.factors
        ),
    )


def _timed(given: list[_TimedBytes] | None) -> tuple[TimedBytes, ...] | None:
    if given is None:
        return None
    return tuple(TimedBytes(each.start, each.stop, _array(each.nbytes)) for each in given)


def _plain(array: Array) -> object:
    boxed = array.astype(object)
    boxed[np.isposinf(array)] = None
    plain: object = boxed.tolist()
    return plain


def _or_none(values: object) -> Array | None:
    return None if values is None else _array(values)


def _or_zeros(values: list[float] | None, count: int) -> Array:
    return np.zeros(count) if values is None else _array(values)


def _array(values: object) -> Array:
    """A table of numbers of any rank; null is infinity."""
    try:
        boxed = np.array(values, dtype=object)
        numbers = boxed.ndim <= DEEPEST and all(
            value is None or type(value) in (int, float) for value in boxed.flat
        )
        if numbers:
            boxed[boxed == np.array(None)] = np.inf
            return boxed.astype(np.float64)
    except (ValueError, OverflowError, RecursionError):
        pass
    raise PlanError("A table of this problem is not a regular table of numbers and nulls.")
