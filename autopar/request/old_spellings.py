"""Accepts, with a warning, arguments of version 0.1 that are now fields of an option value.

The next version removes them, and this file.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar

from autopar.errors import InputError
from autopar.request.batches import Batches
from autopar.request.pipeline import Pipeline
from autopar.request.planning import Planning
from autopar.request.weights import Weights
from autopar.utils.messages import argument

Params = ParamSpec("Params")
Result = TypeVar("Result")

HOMES: dict[str, tuple[str, type[Any], str]] = {
    "stages": ("pipeline", Pipeline, "stages"),
    "schedule": ("pipeline", Pipeline, "schedule"),
    "microbatches": ("pipeline", Pipeline, "microbatches"),
    "cuts": ("pipeline", Pipeline, "cuts"),
    "asynchronous": ("pipeline", Pipeline, "asynchronous"),
    "input": ("batches", Batches, "local"),
    "outputs": ("batches", Batches, "outputs"),
    "replan": ("batches", Batches, "replan"),
    "database": ("planning", Planning, "database"),
    "allow_undivided": ("planning", Planning, "allow_undivided"),
    "source": ("planning", Planning, "source"),
    "init": ("weights", Weights, "init"),
}
"""From an old argument to the new one, its value's class, and the field."""
FIRST_FIELD = {Pipeline: "stages", Weights: "source"}
"""The field that may be passed alone instead of the option value."""


def with_old_spellings(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Decorate a function so that it also accepts the old arguments."""

    @functools.wraps(function)
    def called(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        if kwargs.keys() & HOMES.keys():
            return function(*args, **respelt(kwargs))
        return function(*args, **kwargs)

    return called


def respelt(arguments: dict[str, Any]) -> dict[str, Any]:
    """Convert old arguments to the new ones; warn once for each option value made of them."""
    new = {name: value for name, value in arguments.items() if name not in HOMES}
    made: dict[str, dict[str, Any]] = {}
    for old in (name for name in arguments if name in HOMES):
        name, kind, field = HOMES[old]
        made.setdefault(name, _beside(name, kind, new))[field] = _meant(old, arguments[old])
    for name, given in made.items():
        kind = next(kind for other, kind, _ in HOMES.values() if other == name)
        if kind is Pipeline:
            given = {"stages": 1, **given}
        new[name] = kind(**given)
        _warn(name, kind, given)
    return new


def _beside(name: str, kind: type[Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an option value that the new spelling sets already.

    Raise `InputError` if a complete option value is passed together with its old arguments.
    """
    given = new.get(name)
    if given is None:
        return {}
    if not isinstance(given, kind) and kind in FIRST_FIELD:
        return {FIRST_FIELD[kind]: given}
    raise InputError(
        f"{argument(name, given)} is given together with old arguments: write all of them as "
        f"fields of autopar.{kind.__name__}."
    )


def _meant(old: str, value: Any) -> Any:
    """Convert an old argument's value: ``input="local"`` is a bool now."""
    if old != "input":
        return value
    if value not in ("global", "local"):
        raise InputError(f"{argument('input', value)} is unknown: pass {argument('local', True)}.")
    return value == "local"


def _warn(name: str, kind: type[Any], given: dict[str, Any]) -> None:
    said = ", ".join(
        f"{field.name}={_short(given[field.name])}" for field in fields(kind) if field.name in given
    )
    old = ", ".join(old for old, home in HOMES.items() if home[0] == name)
    warnings.warn(
        f"The arguments {old} are now fields of autopar.{kind.__name__}, and will be removed in "
        f"the next version. Write {name}=autopar.{kind.__name__}({said}).",
        FutureWarning,
        stacklevel=4,
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else "..."
