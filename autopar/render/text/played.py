"""Renders a replayed step as text: the step, a timeline, and memory over time against the limit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from autopar.explain.replay import Played, Row, Span
from autopar.ir.units import nbytes, seconds
from autopar.render.text.table import WIDTH, row, table
from autopar.render.text.timeline import timeline

COLUMNS, FEWEST = 72, 24
"""Maximum and minimum number of columns of a drawing."""
MARGIN = "  communication  "
LEVELS = " ▁▂▃▄▅▆▇█"
LETTERS = {"forward": "F", "backward": "B", "update": "U"}
HIDDEN, IDLE = "h", "·"


def show_played(played: Played, width: int = WIDTH) -> RenderableType:
    """Return the replayed step, not wider than `width` if possible."""
    columns = min(COLUMNS, max(FEWEST, width - len(MARGIN)))
    return Group(*_head(played), "", *_timeline(played, width, columns), "",
                 *_memory(played, columns), "", _table(played),
                 *(Text(f"\n{note}") for note in played.notes))  # fmt: skip


def _head(played: Played) -> Iterator[Text]:
    yield Text(f"{played.model}, {played.conditions}: a step takes {seconds(played.step_s)}")
    if played.conditions != "as planned":
        per_sample = played.step_s / played.samples
        more = per_sample / played.planned_s - 1 if played.planned_s else 0.0
        of = " per sample" if played.samples != 1 else ""
        word = "slower" if more > 0 else "faster"
        yield Text(
            f"planned {seconds(played.planned_s)}"
            + (f": {abs(more):.1%} {word}{of}" if abs(more) > 1e-9 else ": no difference" + of)
        )


def _timeline(played: Played, width: int, columns: int) -> Iterator[RenderableType]:
    if played.simulated is not None:
        text = timeline(played.simulated).rstrip("\n")
        if max(map(len, text.splitlines())) <= min(width, WIDTH):
            yield Text(text)
            yield Text("F forward, B backward, I and W its halves; U update; · waits", style="dim")
            return
    for each in played.rows:
        yield Text(each.name)
        for lane in ("compute", "communication"):
            drawn = _drawn(each, played.step_s, lane, columns)
            called = "busy" if lane == "compute" and _is_staged(played) else lane
            yield Text(f"  {called}".ljust(len(MARGIN)) + drawn)
    yield Text(_legend(played, columns), style="dim")


def _is_staged(played: Played) -> bool:
    """Whether it is a pipeline, whose actions are timed with compute and communication together."""
    return played.simulated is not None


def _letter(span: Span) -> str:
    if span.hidden:
        return HIDDEN
    if span.lane == "communication":
        axis = span.what.rpartition(" on ")[2] if " on " in span.what else "r"
        return axis[0]
    word = span.what.split(" ")[0]
    return LETTERS.get(word, word[0].upper())


def _drawn(each: Row, step_s: float, lane: str, columns: int) -> str:
    """Draw a lane: in each column what takes most of its time, or a dot."""
    spent: list[dict[str, float]] = [{} for _ in range(columns)]
    width = step_s / columns or 1.0
    for span in each.spans:
        if span.lane == lane:
            first, last = int(span.start / width), min(columns - 1, int(span.end / width))
            for column in range(min(first, columns - 1), last + 1):
                within = min(span.end, (column + 1) * width) - max(span.start, column * width)
                letter = _letter(span)
                spent[column][letter] = spent[column].get(letter, 0.0) + max(0.0, within)
    cells = (max(c, key=lambda k: c[k]) if c and max(c.values()) > width / 20 else IDLE
             for c in spent)  # fmt: skip
    return "".join(cells)


def _legend(played: Played, columns: int) -> str:
    sent = {s.what for each in played.rows for s in each.spans
            if s.lane == "communication" and not s.hidden}  # fmt: skip
    axes = sorted({what.rpartition(" on ")[2] for what in sent if " on " in what})
    said = ["F forward", "B backward", "U update"]
    said += [f"{axis[0]} on axis {axis}" for axis in axes]
    said += [f"{HIDDEN} hidden behind compute", f"{IDLE} nothing"]
    return (
        f"{', '.join(said)}; a column is {seconds(played.step_s / columns)} and shows what "
        "took most of it"
    )


def _memory(played: Played, columns: int) -> Iterator[Text]:
    top, limit = max(each.peak for each in played.rows), played.limit_nbytes
    of = "" if not limit else f", {top / limit:.1%} of the limit"
    yield Text(f"memory; full height is the peak, {nbytes(top)}{of}")
    for each in played.rows:
        name = each.name.split(" (")[0]
        yield Text(f"  {name[:13]:<13}  {_levels(each, played.step_s, top, columns)}")


def _levels(each: Row, step_s: float, top: float, columns: int) -> str:
    """Draw memory over time: the maximum in each column."""
    width = step_s / columns or 1.0
    most = [0.0] * columns
    ends = [second for second, _ in each.memory[1:]] + [step_s]
    for (start, held), end in zip(each.memory, ends, strict=True):
        for column in range(int(start / width), min(columns, math.ceil(end / width))):
            most[column] = max(most[column], held)
    return "".join(LEVELS[round(held / top * (len(LEVELS) - 1))] if top else " " for held in most)


def _table(played: Played) -> RenderableType:
    title, spent = "on one rank", ("computes", "does not")
    if _is_staged(played):
        title, spent = (
            f"{title}; busy with its actions and the collectives in them",
            ("busy", "idle"),
        )
    columns = (*spent, "peak", "of the limit")
    made = table(title, "", *columns, right=columns)
    for each in played.rows:
        idle = 1 - each.busy_s / played.step_s if played.step_s else 0.0
        of = "" if not played.limit_nbytes else f"{each.peak / played.limit_nbytes:.1%}"
        row(made, each.name, seconds(each.busy_s), f"{idle:.1%}", nbytes(each.peak), of)
    return made
