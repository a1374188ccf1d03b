"""Renders an explanation as a sentence and tables of the alternatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autopar.explain.explanation import Alternative, Explanation
from autopar.ir.units import nbytes, seconds
from autopar.plans.changes import Change, Difference, Figure
from autopar.render.text.table import row, table
from autopar.render.text.unsolved import listed

SAME = "same"
NOTHING = ("0 s", seconds(1e-9), nbytes(0))
"""Texts of differences that are too small to print."""
PARTS = 4
"""Maximum number of communication kinds printed one by one; the others are summed."""
COSTS = ("a step", "compute", "communication", "memory", "with it")
RIGHT = ("a step", "compute", "memory")


Labelled = list[tuple[str, Alternative]]


def explanation(found: Explanation) -> RenderableType:
    """Return the sentence, the alternatives, their costs, and notes on unsolved candidates."""
    shown = labelled(found)
    scope = [Text(f"Figures are {found.scope}.")] if found.scope else []
    said = [Text(line) for line in notes(found)]
    parts = (_legend(shown), "", _table(found, shown), *said, *listed(found))
    return Group(Text(found.sentence), *scope, "", *parts)


def labelled(found: Explanation) -> Labelled:
    """Return the alternatives that were solved for or are impossible, with their labels in tables."""
    made = [each for each in found.alternatives if each.why or each.plan is not None]
    return [(_label(found, each, place), each) for place, each in enumerate(made)]


def costs_of(found: Explanation, each: Alternative, most: int | None = None) -> tuple[str, ...]:
    """Return an alternative's costs by `COSTS`, as differences unless it is the chosen one.

    `most` limits the communication kinds that are listed one by one; None: all.
    """
    if each.difference is None:
        return ("",) * len(COSTS)
    if each.is_chosen:
        return _absolute(each.difference, most)
    return _more(each.difference, found, most)


def _label(found: Explanation, each: Alternative, place: int) -> str:
    if each.is_chosen:
        return "chosen"
    return each.types if found.kind == "block" else str(place)


def _legend(shown: Labelled) -> Table:
    """Return a table of the alternatives' meanings and types."""
    made = Table.grid(padding=(0, 2))
    for label, each in shown:
        types = "" if each.types == label else each.types
        row(made, label, "\n".join(filter(None, (each.words, types, each.why))))
    return made


def _table(found: Explanation, shown: Labelled) -> Table:
    """Return a table of costs: the chosen one's, and the others' differences from it."""
    name = f"{found.name}  ({found.path})" if found.name != found.path else found.path
    made = table(name, found.kind, found.unit, *COSTS[1:], right=(found.unit, *RIGHT[1:]))
    for label, each in shown:
        if each.difference is not None:
            row(made, label, *costs_of(found, each, PARTS))
    return made


def notes(found: Explanation) -> Iterator[str]:
    """Yield notes on candidates that were not solved for, and on the meaning of a minus sign."""
    left = [each.bound_s for each in found.alternatives if each.plan is None and not each.why]
    bounds = [bound for bound in left if bound is not None and math.isfinite(bound)]
    if bounds and found.chosen.plan is not None:
        more = max(0.0, min(bounds) - found.chosen.plan.objective_s)
        yield (
            f"{_others(len(bounds))} at least {seconds(more)} more each by the sum that the solver "
            "minimised."
        )
    if len(bounds) < len(left):
        yield f"Excluded by other fixed choices: {len(left) - len(bounds)} more."
    if any((each.more_s or 0.0) < 0.0 for each in found.alternatives):
        yield (
            "Less: the prediction counts costs that tensors share, and the sum that the solver "
            "minimised does not."
        )


def _others(count: int) -> str:
    return "1 other candidate costs" if count == 1 else f"{count} other candidates cost"


def _absolute(of: Difference, most: int | None) -> tuple[str, ...]:
    """Return the numbers of the explained plan."""
    sent = [f for f in of.figures if f.kind == "communication"]
    sent.sort(key=lambda f: -(f.after or 0.0))
    told, others = _cut(sent, most)
    parts = [f"{f.name} {seconds(f.after or 0.0)}" for f in told]
    if rest := sum(f.after or 0.0 for f in others):
        parts.append(f"{len(others)} others {seconds(rest)}")
    if hidden := of.figure("communication, hidden").after:
        parts.append(f"of which hidden {seconds(hidden)}")
    return (
        seconds(of.figure("step").after or 0.0),
        seconds(of.figure("compute").after or 0.0),
        _lines(parts),
        nbytes(of.figure("peak").after or 0.0),
        "",
    )


def _more(of: Difference, found: Explanation, most: int | None) -> tuple[str, ...]:
    """Return the differences from the explained plan."""
    sent = [f for f in of.figures if f.kind == "communication" and _signed(f) != SAME]
    sent.sort(key=lambda f: -abs(f.more or 0.0))
    told, others = _cut(sent, most)
    parts = [f"{f.name} {_signed(f)}" for f in told]
    rest = sum(f.more or 0.0 for f in others)
    if others and _told(rest, seconds) != SAME:
        parts.append(f"{len(others)} others {_told(rest, seconds)}")
    hidden = of.figure("communication, hidden")
    if _signed(hidden) != SAME:
        parts.append(f"of which hidden {_signed(hidden)}")
    return (
        _signed(of.figure("step")), _signed(of.figure("compute")), _lines(parts),
        _signed(of.figure("peak")), _lines(_counts(of.changes, found)),
    )  # fmt: skip


def _cut(sent: list[Figure], most: int | None) -> tuple[list[Figure], list[Figure]]:
    """Split into listed and summed numbers; a single remaining one is listed instead of summed."""
    if most is None or len(sent) <= most + 1:
        return sent, []
    return sent[:most], sent[most:]


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts) or SAME


def _signed(figure: Figure) -> str:
    return _told(figure.more or 0.0, nbytes if figure.kind == "memory" else seconds)


def _told(more: float, unit: Callable[[float], str]) -> str:
    """Return a difference with its sign, unless it is too small to print."""
    said = unit(abs(more))
    return SAME if said in NOTHING else f"{'+' if more > 0 else '-'}{said}"


def _counts(changes: tuple[Change, ...], found: Explanation) -> Iterator[str]:
    """Yield the number of other changed decisions, by kind."""
    for subject, word in (
        ("parameter", "parameter"), ("operator", "operator"), ("recompute", "block"),
    ):  # fmt: skip
        names = {c.name for c in changes if c.subject == subject} - {found.name}
        if names:
            yield f"{len(names)} {word}{'s' * (len(names) > 1)}"
