"""Presets: well-known parallelisms as declarative files of constraints.

A file has the tables ``data`` and ``tensor``, or in place of a table the name of the preset that has it.
On a mesh of several axes the last is the tensor axis and the others are data axes; on a mesh of one axis
the preset's ``single`` determines its role.  ``regather`` says whether the backward all-gathers weights
again; without it the solver decides.

Names joined by ``+``, such as ``ddp+fsdp+megatron``, are one preset for each mesh axis, in the role that
it has alone.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any, get_args

from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.request.constraints import Constraint, Subject
from autopar.utils.io import text_of
from autopar.utils.suggest import known as among

ROLES, SUFFIX, BESIDE = ("data", "tensor"), ".toml", "+"
KEYS = ("single", "regather", *ROLES)


def names() -> tuple[str, ...]:
    """Return the names of all presets."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def load(name: str, mesh: Mesh) -> tuple[Constraint, ...]:
    """Return the constraints of a preset on a mesh; `name` is a preset or a file of the same form.

    Raise `InputError` if it names a preset for each of several axes, and the mesh has another number.
    """
    constraints: list[Constraint] = []
    for position, (axis, part) in enumerate(zip(mesh.names, _by_axis(name, mesh), strict=True)):
        content, last = _content(part), position == len(mesh) - 1
        alone = len(mesh) == 1 or len(_parts(name)) > 1
        role = content["single"] if alone else "tensor" if last else "data"
        for subject, rules in content[role].items():
            for pattern, text in rules.items():
                with _placed(part, f'{role}.{subject}."{pattern}"'):
                    made = Constraint.of(subject, pattern, text, axis)
                constraints.append(replace(made, optional=True))
    return tuple(constraints)


@contextmanager
def _placed(name: str, place: str) -> Iterator[None]:
    """Name the preset and the place in its file in errors."""
    try:
        yield
    except InputError as error:
        raise InputError(f"The preset {name}, {place}: {error}") from None


def _parts(name: str) -> tuple[str, ...]:
    """Return the presets that a name joins; the path of a file may have any characters."""
    return (name,) if name.endswith(SUFFIX) else tuple(name.split(BESIDE))


def _by_axis(name: str, mesh: Mesh) -> tuple[str, ...]:
    """Return the preset of each axis."""
    parts = _parts(name)
    if len(parts) == 1:
        return parts * len(mesh)
    if len(parts) != len(mesh):
        raise InputError(
            f"The preset {name!r} is for {len(parts)} axes; the mesh ({mesh}) has {len(mesh)}. Join "
            f"one preset for each axis by {BESIDE}, or pass a single one for all."
        )
    return parts


def _content(name: str) -> dict[str, Any]:
    """Return the tables of a preset.  Raise `InputError` for an unknown name or invalid file."""
    content = _written(name)
    for role in ROLES:
        other = content[role]
        if isinstance(other, str):
            content[role] = _written(other)[role]
            content.setdefault("regather", _written(other).get("regather"))
    return content


def _written(name: str) -> dict[str, Any]:
    """Return the content of a preset's file, in which a table may be another preset's name."""
    if not name.endswith(SUFFIX):
        if name not in names():
            raise InputError(f"There is no preset {name!r}; the presets are {', '.join(names())}.")
        return tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text())
    try:
        content = tomllib.loads(text_of(name, "the preset", InputError))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"The preset {name} is not a TOML file: {error}.") from None
    _check(content, name)
    return content


def _check(content: dict[str, Any], name: str) -> None:
    """Raise `InputError` unless the content of a file is that of a preset."""
    faults = [*_unknown("key", content, KEYS)]
    if content.get("single") not in ROLES:
        faults.append(
            f'`single` has to be "data" or "tensor", the table for a mesh of one axis, not '
            f"{content.get('single')!r}"
        )
    if not isinstance(content.get("regather", True), bool):
        faults.append(f"`regather` has to be true or false, not {content['regather']!r}")
    faults += [fault for role in ROLES for fault in _faults_of(role, content.get(role))]
    if faults:
        raise InputError(f"The preset {name}: {'; '.join(faults)} (docs/extending.md shows one).")


def _faults_of(role: str, given: object) -> Iterator[str]:
    """Yield what is wrong with a role's table, or with the name of a preset in its place."""
    if not isinstance(given, dict):
        if given not in _whole():
            said = "it has no table" if given is None else f"{given!r} is not a table"
            yield (
                f"{said} [{role}]; in place of the table may stand the name of the preset that has it, "
                f"one of {', '.join(_whole())}"
            )
        return
    yield from _unknown(f"subject in [{role}]", given, get_args(Subject))
    for subject, rules in given.items():
        if not isinstance(rules, dict) or not all(isinstance(t, str) for t in rules.values()):
            yield (
                f"{role}.{subject} is not a table of patterns and their types, such as "
                "'*.weight' = \"S(0), else I\""
            )


def _unknown(what: str, given: Iterable[str], known: Sequence[str]) -> Iterator[str]:
    """Yield what is said of each name that is not known."""
    for name in given:
        if name not in known:
            yield f"the {what} {name!r} is unknown, known are {', '.join(known)}"


@cache
def _whole() -> tuple[str, ...]:
    """Return the presets that have tables of their own."""
    written = {name: _written(name) for name in names()}
    return tuple(n for n, has in written.items() if all(isinstance(has[r], dict) for r in ROLES))


def known(name: str) -> str:
    """Return the name if it is a preset's or a file's; else raise an error with the nearest name.

    Presets may be joined by ``+``.
    """
    for part in _parts(name):
        if not part.endswith(SUFFIX):
            among("preset", part, names())
    return name


def describe(name: str) -> str:
    """Return the leading comment of a preset's file as one line."""
    lines = resources.files(__name__).joinpath(f"{name}.toml").read_text().splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.removeprefix("#").strip() for line in comment)


def regathers(name: str) -> bool | None:
    """Whether the preset all-gathers weights again in the backward; None if it is not specified."""
    answers = [_content(part).get("regather") for part in _parts(name)]
    return next((answer for answer in answers if isinstance(answer, bool)), None)
