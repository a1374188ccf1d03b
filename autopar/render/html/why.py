"""Explanations on the page: the sentence, what each way is, and what it costs."""

from __future__ import annotations

from html import escape

from autopar.explain.explanation import Alternative, Explanation
from autopar.render.html.tables import table
from autopar.render.text.explanation import COSTS, RIGHT, costs_of, labelled, notes
from autopar.render.text.unsolved import HEADS, unsolved


def why(found: Explanation) -> str:
    """One explanation; the alternatives fold away under its sentence."""
    heads = ("", "way", found.unit, *COSTS[1:])
    rows = [
        (escape(label), _way(label, each), *_costs(found, each)) for label, each in labelled(found)
    ]
    right = tuple(2 + COSTS.index(name) for name in RIGHT)
    said = [found.scope and f"Figures are {found.scope}.", *notes(found)]
    below = "".join(f'<p class="soft">{escape(line)}</p>' for line in said if line)
    return (
        f"<details open><summary>{escape(found.sentence)}</summary>"
        f"{table(heads, rows, right, is_wide=True)}{below}{_unsolved(found)}</details>"
    )


def _way(label: str, each: Alternative) -> str:
    """In words, as types, and why it is impossible where it is."""
    types = "" if each.types == label else f'<code class="path">{escape(each.types)}</code>'
    return "<br>".join(filter(None, (escape(each.words), types, escape(each.why))))


def _costs(found: Explanation, each: Alternative) -> tuple[str, ...]:
    """Each part on a line that is not broken; of what was not solved for, nothing."""
    return tuple(
        "<br>".join(f'<span class="line">{escape(p)}</span>' for p in cell.split("\n") if p)
        for cell in costs_of(found, each)
    )


def _unsolved(found: Explanation) -> str:
    """Every candidate that was not solved for, folded away, with its bound."""
    rows = [
        (f'<code class="path">{escape(types)}</code>', escape(least))
        for types, least in unsolved(found)
    ]
    if not rows:
        return ""
    said = f"{len(rows)} candidate{'s' * (len(rows) > 1)} {HEADS[0]}"
    return f"<details><summary>{said}</summary>{table(HEADS, rows, (1,))}</details>"
