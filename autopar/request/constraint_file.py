"""Reads constraints from a TOML file, each with its line number.

    [pin]                                  # required
    "stored:*.up_proj.weight" = "[S(0), *]"    # a type per mesh axis, * for any

    [forbid]                               # any other type
    "used:*.down_proj.weight" = { gpu = "R" }  # or by mesh axis name

    [prefer]                               # if some candidate has it
    "model.layers.*.mlp/*" = { node = "S(0)" }

Names are those of `autopar show`; `request.constraints.from_user` documents the prefixes of names.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import get_args

from autopar.errors import ConstraintError, InputError
from autopar.ir.mesh import Mesh
from autopar.request.constraints import Constraint, Kind, of_kind
from autopar.utils.io import text_of

KINDS: tuple[Kind, ...] = get_args(Kind)


def from_file(path: str | Path, mesh: Mesh) -> tuple[Constraint, ...]:
    """Return the constraints of a file in line order.  Raise `ConstraintError` if it is invalid."""
    text = text_of(path, "the constraints in", ConstraintError)
    try:
        content = tomllib.loads(text)
    # ValueError also for integers of thousands of digits, RecursionError for deeply nested lists.
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"Cannot read the constraints in {path}: {error}.") from None
    unknown = [name for name in content if name not in KINDS]
    if unknown or not content:
        raise ConstraintError(f"{path} has {_strange(content, unknown)}.")
    found = [
        (line, made)
        for kind in KINDS
        for key, value in _entries(content, kind, path)
        for line in [_line(text, kind, key)]
        for made in _read(f"{path}:{line}", kind, key, value, mesh)
    ]
    return tuple(made for _, made in sorted(found, key=lambda pair: pair[0]))


def _strange(content: dict[str, object], unknown: list[str]) -> str:
    """Describe what the file has instead of the constraint tables, with a remedy."""
    tables = [f"[{kind}]" for kind in KINDS]
    if unknown and not isinstance(content[unknown[0]], dict):
        return f"{unknown[0]!r} above all tables: write it below {' or '.join(tables)}"
    what = f"a table {unknown[0]!r}" if unknown else "nothing"
    return f"{what}: write tables {', '.join(tables)}"


def _entries(
    content: dict[str, object], kind: str, path: str | Path
) -> list[tuple[str, str | dict[str, str]]]:
    table = content.get(kind, {})
    if not isinstance(table, dict):
        raise ConstraintError(f"{path}: write [{kind}] above the constraints, not {kind} = ...")
    for key, value in table.items():
        texts = value.values() if isinstance(value, dict) else [value]
        if not all(isinstance(text, str) for text in texts):
            raise ConstraintError(
                f'{path}, {key!r}: write "[S(0), *]" or {{ axis = "S(0)" }}, not {value!r}. '
                "Put a name with dots in quotes."
            )
    return list(table.items())


def _read(
    at: str, kind: Kind, key: str, value: str | dict[str, str], mesh: Mesh
) -> list[Constraint]:
    try:
        return [replace(each, at=at) for each in of_kind(kind, {key: value}, mesh)]
    except InputError as error:
        raise ConstraintError(
            f"{at}: {error} (Put a name with dots in quotes.)"
            if "." not in key
            else f"{at}: {error}"
        ) from None


def _line(text: str, kind: str, key: str) -> int:
    """Return the line number of a key in the given table."""
    quoted = "|".join(re.escape(form) for form in (f'"{key}"', f"'{key}'", key))
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.fullmatch(r"\s*\[\s*(\w+)\s*\]\s*(#.*)?", line):
            table = head[1]
        elif table == kind and re.match(rf"\s*({quoted})\s*[=.]", line):
            return number
    return next((n for n, line in enumerate(text.splitlines(), 1) if key in line), 1)
