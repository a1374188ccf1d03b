"""Presets: well-known parallelisms as declarative files of constraints.

A file has the tables ``data`` and ``tensor``, or in place of a table the name of the preset that has it.
On a mesh of several axes the last is the tensor axis and the others are data axes; on a mesh of one axis
the preset's ``single`` determines its role.

Names joined by ``+``, such as ``ddp+fsdp+megatron``, are one preset for each mesh axis, which has the
role that the preset has on a mesh of one axis.
"""

from __future__ import annotations

import itertools
import tomllib
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.request.constraints import Constraint
from autopar.utils.io import text_of
from autopar.utils.suggest import known as among

ROLES, SUFFIX, BESIDE = ("data", "tensor"), ".toml", "+"


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
        is_alone = len(mesh) == 1 or part != name
        role = content["single"] if is_alone else "tensor" if last else "data"
        for subject, rules in content[role].items():
            for pattern, text in rules.items():
                made = Constraint.of(subject, pattern, text, axis)
                constraints.append(replace(made, optional=True))
    return tuple(constraints)


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
    roles = {role: content.get(role) for role in ROLES}
    if content.get("single") not in ROLES or not all(map(_is_role, roles.values())):
        raise InputError(
            f"The preset {name} is incomplete: a preset has the tables [data] and [tensor], and "
            "the key single, which names the table for a mesh of one axis (docs/extending.md "
            "shows one). In place of a table may stand the name of the preset that has it: one of "
            f"{', '.join(_whole())}."
        )
    for role, subjects in roles.items():
        for subject, rules in subjects.items() if isinstance(subjects, dict) else ():
            if not isinstance(rules, dict) or not all(isinstance(t, str) for t in rules.values()):
                raise InputError(
                    f"The preset {name} has {role}.{subject}, which is not a table of patterns "
                    "and their types, such as '*.weight' = \"S(0), else I\"."
                )


def _is_role(given: object) -> bool:
    """Whether this is a role's table, or the name of a preset with a table for it."""
    return isinstance(given, dict) or given in _whole()


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
