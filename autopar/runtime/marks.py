"""A variant of the emitted source with a profiler span around every operator group and conversion.

A group is the statements from one line of the user's source, below its comment.  The emitted file does
not change.  The variant is made when a profiler is first active, and only runs while one is, so that it
costs nothing otherwise.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

import torch

from autopar.ir.collectives import COLLECTIVES
from autopar.runtime import _torch
from autopar.runtime.module import Module, path_of
from autopar.runtime.named import PREFIX, label

_ORIGIN = re.compile(r"\s*# (\S+:\d+)  ")
_MARK = "__mark__"


def marked(source: str, path: Path, name: str) -> ModuleType:
    """Return the emitted module with profiler spans."""
    tree = ast.parse(source, str(path))
    origins = [_ORIGIN.match(line) for line in source.splitlines()]
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = list(_with_marks(node.body, origins, classes, node.lineno))
    module = ModuleType(name)
    module.__dict__[_MARK] = _mark
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), module.__dict__)
    return module


Numbered = tuple[int, int, str]
"""First autograd sequence number inside a span, the first one after it, and the span's label."""
_NUMBERS: ContextVar[list[Numbered] | None] = ContextVar("numbers", default=None)


@contextmanager
def numbering() -> Iterator[list[Numbered]]:
    """Record the autograd nodes of each span: operators of the backward have their sequence numbers."""
    numbers: list[Numbered] = []
    token = _NUMBERS.set(numbers)
    try:
        yield numbers
    finally:
        _NUMBERS.reset(token)


@contextmanager
def _mark(module: Module, place: str, verb: str, axis: str) -> Iterator[None]:
    """Record a profiler span around statements of a module."""
    words = label(path_of(module), place, verb, axis)
    first = _torch.next_step_of_autograd()
    with torch.profiler.record_function(PREFIX + words):
        yield
    numbers = _NUMBERS.get()
    if numbers is not None:
        numbers.append((first, _torch.next_step_of_autograd(), words))


Origins = list[re.Match[str] | None]


def _with_marks(
    body: list[ast.stmt], origins: Origins, classes: set[str], first: int
) -> Iterator[ast.stmt]:
    """Group statements of one place and verb in one ``with``; calls of blocks stay outside."""
    last: tuple[str, str, str] | None = None
    together: ast.With | None = None
    for statement in body:
        if not isinstance(statement, ast.Assign) or _uses(statement, classes):
            last = together = None
            yield statement
            continue
        key = (_place(origins, first, statement.lineno), *_verb_and_axis(statement.value))
        if together is None or key != last:
            last, together = key, _with(key, statement)
            yield together
        else:
            together.body.append(statement)


def _place(origins: Origins, first: int, line: int) -> str:
    """Return the source place in the nearest comment above, inside the same function."""
    for found in reversed(origins[first:line]):
        if found:
            return found[1]
    return ""


def _uses(statement: ast.stmt, classes: set[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in classes for node in ast.walk(statement))


def _verb_and_axis(value: ast.expr) -> tuple[str, str]:
    """Return verb and axis of a conversion, or the axis only of an operator that issues collectives."""
    if not isinstance(value, ast.Call):
        return "", ""
    called = value.func.id if isinstance(value.func, ast.Name) else ""
    verb = called.removesuffix("_together")
    if verb in COLLECTIVES and len(value.args) > 1:
        return verb, _axis(value.args[0 if verb != called else 1])
    axes = [_axis(keyword.value) for keyword in value.keywords if keyword.arg == "axis"]
    return "", axes[0] if axes else ""


def _axis(node: ast.expr) -> str:
    """Return the name in ``self.mesh.x`` or ``self.mesh["x"]``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    is_item = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    return str(node.slice.value) if is_item else ""  # type: ignore[attr-defined]


def _with(key: tuple[str, str, str], statement: ast.stmt) -> ast.With:
    call = ast.Call(
        ast.Name(_MARK, ast.Load()),
        [ast.Name("self", ast.Load()), *(ast.Constant(part) for part in key)],
        [],
    )
    made = ast.With([ast.withitem(call)], [statement])
    return ast.copy_location(made, statement)
