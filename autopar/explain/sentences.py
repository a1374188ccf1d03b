"""The first sentence of an explanation: what it is, what else it might be, and what that would cost."""

from __future__ import annotations

from collections.abc import Iterable

from autopar.plans.changes import Difference
from autopar.plans.explanation import Alternative
from autopar.show.units import seconds

SAME = 1e-9
"""Relative to the step: only rounding."""
REASONS = 2


def sentence(name: str, alternatives: Iterable[Alternative], asked: str = "") -> str:
    """``q_proj is split by heads on axis gpu; if it were ..., a step would take 3.1 ms more, ...``

    `asked`: what constraints say of it.
    """
    every = tuple(alternatives)
    chosen = next(each for each in every if each.is_chosen)
    made = [each for each in every if each.difference is not None and not each.is_chosen]
    if not made:
        return f"{name} is {chosen.words}: {_nothing_else(every, asked)}."
    others = [each for each in made if each.words != chosen.words]
    other = min(others, key=lambda each: each.more_s or 0.0, default=None)
    if other is None:
        costs = _costs(chosen, made[0])
        return f"{name} is {chosen.words}, like all alternatives that were tried: {costs}."
    return f"{name} is {chosen.words}; if it were {other.words}, {_costs(chosen, other)}."


def _nothing_else(every: tuple[Alternative, ...], asked: str) -> str:
    if asked:
        return f"the constraints on it ({asked}) leave nothing else"
    why = next((each.why for each in every if each.why and not each.is_chosen), "")
    return f"nothing else is possible ({why})" if why else "there is nothing else to choose"


def _costs(chosen: Alternative, other: Alternative) -> str:
    difference = other.difference
    assert difference is not None
    step = difference.figure("step")
    more = step.more or 0.0
    if abs(more) <= SAME * (step.before or 0.0):
        return "a step would take as long"
    if more < 0:
        return f"a step would take {seconds(-more)} less by the prediction{_counted(chosen, other)}"
    return f"a step would take {seconds(more)} more, because {_because(difference)}"


def _counted(chosen: Alternative, other: Alternative) -> str:
    """By the sum that the solver minimises, where it says something else than the prediction."""
    if chosen.plan is None or other.plan is None:
        return ""
    more = other.plan.objective_s - chosen.plan.objective_s
    word = "more" if more >= 0 else "less"
    return f", and {seconds(abs(more))} {word} by the sum that the solver minimised"


def _because(difference: Difference) -> str:
    """The largest increments of time, two at most."""
    grown = [
        (figure.more, figure.name)
        for figure in difference.figures
        if (figure.kind == "communication" or figure.name == "compute")
        and figure.more is not None
        and figure.more > SAME * (difference.figure("step").before or 0.0)
    ]
    if not grown:
        return "less of the communication hides behind compute"
    words = [f"{name} takes {seconds(more)} more" for more, name in sorted(grown, reverse=True)]
    return " and ".join(words[:REASONS])
