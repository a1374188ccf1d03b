"""The one look of all tables, and renderables as plain text."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from autopar.show.units import wrapped

WIDTH = 100
LABEL = 44
"""Longer names are broken where their parts meet."""


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table without borders; the columns named in `right` hold numbers.

    Only the first column may break its words: everything else would read wrongly in pieces.
    """
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for position, column in enumerate(columns):
        made.add_column(
            column,
            header_style="dim",
            justify="right" if column in right else "left",
            no_wrap=position > 0,
            overflow="fold",
        )
    return made


def line(made: Table, label: str, count: int, *cells: str) -> None:
    """Add a row that begins with a folded name and how often it occurs."""
    row(made, wrapped(label, LABEL), times(count), *cells)


def row(made: Table, *cells: str) -> None:
    """Add a row of literal text: brackets are types here, never markup."""
    made.add_row(*(Text(cell) for cell in cells))


def times(count: int) -> str:
    """``x32``, or nothing for one."""
    return f"x{count}" if count > 1 else ""


def to_text(renderable: RenderableType, width: int = WIDTH) -> str:
    """What a console of this width shows, without colours or trailing spaces."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, highlight=False).print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"
