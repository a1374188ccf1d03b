"""Renders explanations as HTML: the sentence, the alternatives, and their costs."""

from __future__ import annotations

from html import escape

from autopar.explain.explanation import Alternative, Explanation
from autopar.render.html.tables import table
from autopar.render.text.explanation import COSTS, RIGHT, costs_of, labelled, notes
from autopar.render.text.unsolved import HEADS, unsolved


def why(found: Explanation) -> str:
    """Return one explanation; its alternatives can be collapsed below the sentence."""
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
    """Return an alternative's words, its types, and the reason if it is impossible."""
    types = "" if each.types == label else f'<code class="path">{escape(each.types)}</code>'
    return "<br>".join(filter(None, (escape(each.words), types, escape(each.why))))


def _costs(found: Explanation, each: Alternative) -> tuple[str, ...]:
    """Return an alternative's costs, each part on an unbroken line; empty if it was not solved for."""
    return tuple(
        "<br>".join(f'<span class="line">{escape(p)}</span>' for p in cell.split("\n") if p)
        for cell in costs_of(found, each)
    )


def _unsolved(found: Explanation) -> str:
    """Return a collapsed table of the candidates that were not solved for, with their lower bounds."""
    rows = [
        (f'<code class="path">{escape(types)}</code>', escape(least))
        for types, least in unsolved(found)
    ]
    if not rows:
        return ""
    said = f"{len(rows)} candidate{'s' * (len(rows) > 1)} {HEADS[0]}"
    return f"<details><summary>{said}</summary>{table(HEADS, rows, (1,))}</details>"
