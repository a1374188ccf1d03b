"""Problems as JSON: numbers only, no unknown keys, and errors that name the place."""

from __future__ import annotations

import json
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autopar.errors import PlanError
from autopar.problem import Array, Factor, Problem, Variable

DEEPEST = 16
"""Dims of a table that is written by hand."""
Cost = float | None
"""Seconds; null is infinity."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Variable(_Strict):
    name: str
    seconds: Annotated[list[Cost], Field(min_length=1)]
    nbytes: Annotated[list[float], Field(min_length=1)]
    uncovered: list[float] | None = None


class _Factor(_Strict):
    scope: Annotated[list[int], Field(min_length=1)]
    seconds: list[object]
    nbytes: list[object] | None = None
    uncovered: list[object] | None = None


class _Problem(_Strict):
    variables: list[_Variable]
    factors: list[_Factor]


def to_json(problem: Problem) -> str:
    """The problem as text; infinities are written as null."""
    return json.dumps(
        {
            "variables": [
                {
                    "name": v.name,
                    "seconds": _plain(v.seconds),
                    "nbytes": _plain(v.nbytes),
                    "uncovered": _plain(v.uncovered),
                }
                for v in problem.variables
            ],
            "factors": [
                {
                    "scope": list(f.scope),
                    "seconds": _plain(f.seconds),
                    "nbytes": _plain(f.nbytes),
                    "uncovered": _plain(f.uncovered),
                }
                for f in problem.factors
            ],
        }
    )


def from_json(text: str) -> Problem:
    """Read and check a problem; `PlanError` says what is wrong and where."""
    try:
        data = _Problem.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise PlanError(f"This is not a problem: {place}: {first['msg']}.") from None
    problem = Problem(
        tuple(
            Variable(v.name, _array(v.seconds), _array(v.nbytes), _or_none(v.uncovered))
            for v in data.variables
        ),
        tuple(
            Factor(tuple(f.scope), _array(f.seconds), _or_none(f.nbytes), _or_none(f.uncovered))
            for f in data.factors
        ),
    )
    problem.check()
    return problem


def _plain(array: Array | None) -> object:
    if array is None:
        return None
    boxed = array.astype(object)
    boxed[np.isposinf(array)] = None
    plain: object = boxed.tolist()
    return plain


def _or_none(values: object) -> Array | None:
    return None if values is None else _array(values)


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
