"""Presets: the field's named parallelisms as small declarative files of constraints.

A file has the tables ``data`` and ``tensor``.  On a mesh of several axes the last one is the tensor
axis and the others are data axes; on a mesh of one axis the preset's ``single`` says which it is.
"""

from __future__ import annotations

import itertools
import tomllib
from dataclasses import replace
from importlib import resources

from autopar.errors import InputError
from autopar.ir.mesh import Mesh
from autopar.request.constraints import Constraint


def names() -> tuple[str, ...]:
    """Every preset that can be asked for."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def load(name: str, mesh: Mesh) -> tuple[Constraint, ...]:
    """The constraints of a preset on a mesh."""
    if name not in names():
        raise InputError(f"There is no preset {name!r}; the presets are {', '.join(names())}.")
    content = tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text())
    constraints: list[Constraint] = []
    for position, axis in enumerate(mesh.names):
        last = position == len(mesh) - 1
        role = content["single"] if len(mesh) == 1 else "tensor" if last else "data"
        for subject, rules in content[role].items():
            for pattern, text in rules.items():
                made = Constraint.of(subject, pattern, text, axis)
                constraints.append(replace(made, optional=True))
    return tuple(constraints)


def describe(name: str) -> str:
    """The preset's own first comment, on one line."""
    lines = resources.files(__name__).joinpath(f"{name}.toml").read_text().splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.removeprefix("#").strip() for line in comment)


def regathers(name: str) -> bool | None:
    """Whether the preset gathers weights again in the backward (None: it does not say)."""
    text = resources.files(__name__).joinpath(f"{name}.toml").read_text()
    answer = tomllib.loads(text).get("regather")
    return answer if isinstance(answer, bool) else None
