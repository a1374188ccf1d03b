"""Renders the difference of two plans: a sentence, the costs, and the changed decisions, folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autopar.ir.units import joined, nbytes, seconds
from autopar.plans.changes import IDLE, Change, Difference, Figure
from autopar.render.text.fold import fold, lines
from autopar.render.text.names import base
from autopar.render.text.table import line, row, table

WIDE = 30
"""Characters of a sharding before it is wrapped."""
SAME = 1e-9
"""Largest relative difference of figures that counts as rounding."""
OF_PIPELINES = (
    "Of a pipeline, seconds of one rank are those of the worker that idles least, bytes those "
    "of the fullest; sums of gradients over microbatches and transfers between workers are only "
    "in the step and in its stages' seconds."
)


def show_difference(found: Difference) -> RenderableType:
    """Return the sentence and all tables, with repeated blocks folded."""
    return Group(Text(changed(found)), *_tables(found))


def changed(found: Difference) -> str:
    """Return one sentence: how much slower or larger, and how many decisions differ."""
    if not found.changes:
        return f"Both plans of {found.model} ({found.before}) make the same decisions."
    counts = {
        "fact": len(found.of("plan")),
        "parameter": len({c.name for c in (*found.of("parameter"), *found.of("stage"))}),
        "operator": len(found.of("operator")),
        "recomputed block": len(found.of("recompute")),
    }
    said = [f"{n} {word}{'s' * (n > 1)}" for word, n in counts.items() if n]
    words = f"{', '.join(said)} differ{'s' * (sum(counts.values()) == 1)}."
    return f"{found.model}: {_costs(found)} {words}"


def _costs(found: Difference) -> str:
    step, peak = (
        next((f for f in found.figures if f.name == name), None) for name in ("step", "peak")
    )
    if step is None or step.more is None:
        return "one of the plans has no prediction;"
    speed = _compared(step, seconds, "slower", "faster", "as fast")
    size = (
        ""
        if peak is None
        else _compared(peak, nbytes, "more memory", "less memory", "as much memory")
    )
    return f"a step of the second plan is {speed}" + (f", with {size};" if size else ";")


def _compared(figure: Figure, unit: type | object, more: str, less: str, same: str) -> str:
    assert callable(unit)
    if figure.more is None or not _differs(figure):
        return same
    share = f" ({abs(figure.more) / figure.before:.1%})" if figure.before else ""
    return f"{unit(abs(figure.more))}{share} {more if figure.more > 0 else less}"


def _differs(figure: Figure) -> bool:
    before, after = figure.before or 0.0, figure.after or 0.0
    return abs(after - before) > SAME * max(abs(before), abs(after))


def _tables(found: Difference) -> Iterator[RenderableType]:
    yield ""
    yield _figures(found)
    if any(figure.name.startswith(IDLE) for figure in found.figures):
        yield Text(OF_PIPELINES)
    facts = found.of("plan")
    if facts:
        yield ""
        made = table("options and decisions", "what", "before", "after")
        for column in made.columns[1:]:
            column.no_wrap = False  # constraints are sentences
        for fact in facts:
            row(made, fact.name, joined(fact.before.split(", ")), joined(fact.after.split(", ")))
        yield made
    operators = {change.name for change in found.of("operator")}
    for title, name, changes in (
        ("parameters in another stage", "name", found.of("stage")),
        ("parameters, types", "name", found.of("parameter")),
        ("operators, types", "name", _spoken(found.of("operator"), operators)),
        ("blocks, recomputed", "path", found.of("recompute")),
    ):
        if changes:
            yield ""
            yield _folded(title, name, changes)


def _figures(found: Difference) -> Table:
    made = table("predicted on one rank", "", "before", "after", "more",
                 right=("before", "after", "more"))  # fmt: skip
    for figure in found.figures:
        unit = nbytes if figure.kind == "memory" else seconds
        if figure.before or figure.after:
            row(made, figure.name, *(_cell(v, unit) for v in (figure.before, figure.after)),
                _more(figure, unit))  # fmt: skip
    return made


def _cell(value: float | None, unit: object) -> str:
    assert callable(unit)
    return "" if value is None else str(unit(value))


def _more(figure: Figure, unit: object) -> str:
    assert callable(unit)
    if figure.more is None or not _differs(figure):
        return ""
    return f"{'+' if figure.more > 0 else '-'}{unit(abs(figure.more))}"


def _spoken(changes: Iterable[Change], nodes: set[str]) -> tuple[Change, ...]:
    """Return the changes with one name for numbered copies of an operator."""
    return tuple(Change(c.subject, base(c.name, nodes), c.what, c.before, c.after) for c in changes)


def _folded(title: str, name: str, changes: Iterable[Change]) -> Table:
    made = table(title, name, "", "", "before", "after", right=("",))
    made.columns[2].justify = "left"
    rows = ((c.name, (c.what, _types(c.before), _types(c.after))) for c in changes)
    for each in lines(fold(rows)):
        line(made, each.label, each.count, *(each.value or ()))
    return made


def _types(text: str) -> str:
    """Return shardings wrapped to the column's width, or ``none`` for a missing one."""
    if not text:
        return "none"
    parts = text.replace(" -> ", " ->| ").replace("], [", "],| [").split("|")
    texts = [""]
    for part in parts:
        if texts[-1] and len(texts[-1] + part) > WIDE:
            texts.append(part.strip())
        else:
            texts[-1] += part
    return "\n".join(texts)
