"""Common style of all tables, and conversion of renderables to plain text."""

from __future__ import annotations

import io
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from autopar.ir.units import wrapped
from autopar.render.text.fitted import Fitted

WIDTH = 100


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table without borders; the columns named in `right` hold numbers.

    The first column may break its names.  Other cells are never split inside a word: they wrap between
    words on a narrow terminal.
    """
    made = Fitted(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for position, column in enumerate(columns):
        made.add_column(
            column,
            header_style="dim",
            justify="right" if column in right else "left",
            no_wrap=position > 0,
            overflow="fold",
        )
    return made


@dataclass(frozen=True)
class Label:
    """A dotted name that is wrapped between its parts if its column is too narrow."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(16, len(self.text)), len(self.text)).clamp(0, options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(wrapped(self.text, options.max_width))


def line(made: Table, label: str, count: int, *cells: str) -> None:
    """Add a row that starts with a folded name and its number of occurrences."""
    made.add_row(Label(label), times(count), *(Text(cell) for cell in cells))


def row(made: Table, *cells: str) -> None:
    """Add a row of literal text: brackets denote types, not rich markup."""
    made.add_row(*(Text(cell) for cell in cells))


def times(count: int) -> str:
    """Return ``x32``, or an empty string for one."""
    return f"x{count}" if count > 1 else ""


def to_text(renderable: RenderableType, width: int = WIDTH) -> str:
    """Return the output of a console of this width, without colours or trailing spaces."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None, highlight=False)
    console.print(renderable, crop=False)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"
