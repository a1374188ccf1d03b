"""Where commands write: the console, and files that are whole or not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from autopar.cache import write
from autopar.errors import InputError
from autopar.show.table import WIDTH


def console(stderr: bool = False) -> Console:
    """As wide as the terminal; a pipe gets the width that tables are made for."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = max(made.width, WIDTH)
    return made


def save(text: str, path: Path) -> Path:
    """Write a file whole or not at all."""
    try:
        return write(text, path)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror or error}.") from None


def known(kind: str, name: str, names: Iterable[str]) -> str:
    """The name, if it is one of these; otherwise an error that suggests the nearest."""
    every = tuple(names)
    if name in every:
        return name
    raise InputError(f"There is no {kind} {name!r}.{near(name, every)} Known: {', '.join(every)}.")


def near(name: str, names: Iterable[str]) -> str:
    """`` Did you mean 'fsdp'?``, or nothing."""
    close = difflib.get_close_matches(name, tuple(names), 1)
    return f" Did you mean {close[0]!r}?" if close else ""
