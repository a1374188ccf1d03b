"""Renders the candidates of an explanation that were not solved for, with their lower bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from autopar.explain.explanation import Alternative, Explanation
from autopar.ir.units import seconds
from autopar.render.text.table import row, table

LISTED = 4
"""Maximum number of candidates listed on a terminal."""
HEADS = ("not solved for", "a step, at least")


def unsolved(found: Explanation) -> tuple[tuple[str, str], ...]:
    """Return (types, lower bound on the solver's objective), by ascending bound."""
    left = [each for each in found.alternatives if each.plan is None and not each.why]
    return tuple((each.types, _least(found, each)) for each in sorted(left, key=_bound))


def listed(found: Explanation) -> Iterator[RenderableType]:
    """Yield a table of the possible ones with the least bounds, and the number of the others."""
    possible = [pair for pair in unsolved(found) if pair[1].startswith("+")]
    if not possible:
        return
    made = table(HEADS[0], "types", HEADS[1], right=HEADS[1:])
    for types, least in possible[:LISTED]:
        row(made, types, least)
    yield from ("", made)
    rest = len(possible) - LISTED
    yield Text(f"--rows solves for more of them{f'; {rest} are not listed' if rest > 0 else ''}.")


def _least(found: Explanation, each: Alternative) -> str:
    bound_s = _bound(each)
    if each.bound_s is not None and math.isinf(bound_s):
        return "excluded by other fixed choices"
    if math.isinf(bound_s) or found.chosen.plan is None:
        return "not known"
    return f"+{seconds(max(0.0, bound_s - found.chosen.plan.objective_s))}"


def _bound(each: Alternative) -> float:
    return math.inf if each.bound_s is None else each.bound_s
