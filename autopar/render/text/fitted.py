"""A table for narrow terminals: it first wraps between words, and then overflows."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table

PADDING = 2
"""Characters between columns."""
NAME = 24
"""Largest minimum width of the first column; longer words in it are folded."""


class Fitted(Table):
    """A table that equals rich's own one if that fits the terminal.

    Otherwise headers, and cells without numbers, may wrap between words.  If even that is too
    wide, lines exceed the terminal, because that is better than lost letters.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - PADDING * len(self.columns)
        spans = [_span(column, console, options) for column in self.columns]
        kept = sum(
            span.maximum if column.no_wrap else span.minimum
            for column, span in zip(self.columns, spans, strict=True)
        )
        if kept <= room or not self.columns:
            yield from super().__rich_console__(console, options)
            return
        widths = shared(room, spans)
        made = copy.copy(self)
        made.columns = [
            replace(column, width=width, no_wrap=False)
            for column, width in zip(self.columns, widths, strict=True)
        ]
        wide = max(options.max_width, sum(widths) + PADDING * len(widths))
        yield from Table.__rich_console__(made, console, options.update(width=wide))


def shared(room: int, spans: Sequence[Measurement]) -> list[int]:
    """Return each column's minimum width plus its share of the remaining room, by what it can use."""
    left = max(0, room - sum(span.minimum for span in spans))
    wanted = sum(span.span for span in spans) or 1
    return [span.minimum + min(span.span, left * span.span // wanted) for span in spans]


def _span(column: Column, console: Console, options: ConsoleOptions) -> Measurement:
    """Return a column's range of widths: from its longest word to its longest line.

    Columns aligned to the right hold numbers with units, which are not wrapped.
    """
    free = options.update(width=10_000)
    head, *cells = (Measurement.get(console, free, cell) for cell in (column.header, *column.cells))
    widest = max(span.maximum for span in (head, *cells))
    if column.justify == "right":
        return Measurement(max(head.minimum, *(span.maximum for span in cells), 0), widest)
    least = max(span.minimum for span in (head, *cells))
    return Measurement(min(least, NAME) if column._index == 0 else least, widest)
