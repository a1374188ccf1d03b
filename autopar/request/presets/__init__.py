"""Presets: well-known parallelisms as declarative files of constraints.

A file has the tables ``data`` and ``tensor``.  On a mesh of several axes the last is the tensor axis
and the others are data axes; on a mesh of one axis the preset's ``single`` determines its role.
"""

from __future__ import annotations

import itertools
import tomllib
from dataclasses import replace
from importlib import resources
from typing import Any

from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.request.constraints import Constraint
from autopar.utils.io import text_of
from autopar.utils.suggest import known as among

ROLES, SUFFIX = ("data", "tensor"), ".toml"


def names() -> tuple[str, ...]:
    """Return the names of all presets."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def load(name: str, mesh: Mesh) -> tuple[Constraint, ...]:
    """Return the constraints of a preset on a mesh; `name` is a preset or a file of the same form."""
    content = _content(name)
    constraints: list[Constraint] = []
    for position, axis in enumerate(mesh.names):
        last = position == len(mesh) - 1
        role = content["single"] if len(mesh) == 1 else "tensor" if last else "data"
        for subject, rules in content[role].items():
            for pattern, text in rules.items():
                made = Constraint.of(subject, pattern, text, axis)
                constraints.append(replace(made, optional=True))
    return tuple(constraints)


def _content(name: str) -> dict[str, Any]:
    """Return the tables of a preset's file.  Raise `InputError` for an unknown name or invalid file."""
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
    if content.get("single") not in ROLES or not all(isinstance(r, dict) for r in roles.values()):
        raise InputError(
            f"The preset {name} is incomplete: a preset has the tables [data] and [tensor], and "
            "the key single, which names the table for a mesh of one axis (docs/extending.md "
            "shows one)."
        )
    for role, subjects in roles.items():
        for subject, rules in (subjects or {}).items():
            if not isinstance(rules, dict) or not all(isinstance(t, str) for t in rules.values()):
                raise InputError(
                    f"The preset {name} has {role}.{subject}, which is not a table of patterns "
                    "and their types, such as '*.weight' = \"S(0), else I\"."
                )


def known(name: str) -> str:
    """Return the name if it is a preset's or a file's; else raise an error with the nearest name."""
    return name if name.endswith(SUFFIX) else among("preset", name, names())


def describe(name: str) -> str:
    """Return the leading comment of a preset's file as one line."""
    lines = resources.files(__name__).joinpath(f"{name}.toml").read_text().splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.removeprefix("#").strip() for line in comment)


def regathers(name: str) -> bool | None:
    """Whether the preset all-gathers weights again in the backward; None if it is not specified."""
    answer = _content(name).get("regather")
    return answer if isinstance(answer, bool) else None
