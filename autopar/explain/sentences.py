"""Writes the first sentence of an explanation: the choice, the best alternative, and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autopar.explain.explanation import Alternative
from autopar.ir.units import seconds
from autopar.plans.changes import Difference

SAME = 1e-9
"""Differences below this fraction of the step are rounding."""
REASONS = 4
NEARLY = 0.2
"""Fraction of a difference that may stay unexplained."""
HIDDEN = "communication, hidden"
COARSE = {
    "compute": "compute", "communication, exposed": "communication that compute does not hide",
}  # fmt: skip
Part = tuple[float, str]
"""Additional seconds, and their cause."""


def sentence(
    name: str, alternatives: Iterable[Alternative], asked: str = "", unit: str = "a step"
) -> str:
    """Return the sentence, such as ``q_proj is split by heads; if it were ..., a step would take ...``

    `asked` is the text of the constraints on it; `unit` names what the seconds refer to.
    """
    every = tuple(alternatives)
    chosen = next(each for each in every if each.is_chosen)
    made = [each for each in every if each.difference is not None and not each.is_chosen]
    if not made:
        return f"{name} is {chosen.words}: {_nothing_else(every, asked)}."
    others = [each for each in made if each.words != chosen.words]
    other = min(others, key=lambda each: each.more_s or 0.0, default=None)
    if other is None:
        costs = f"{unit} {_costs(chosen, made[0])}"
        return f"{name} is {chosen.words}, like all alternatives that were tried: {costs}."
    costs = f"{unit} {_costs(chosen, other)}"
    return f"{name} is {chosen.words}; if it were {other.words}, {costs}."


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
        return "would take as long"
    if more < 0:
        said = f"would take {seconds(-more)} less by the prediction"
        return f"{said}{_because(difference)}{_counted(chosen, other)}"
    return f"would take {seconds(more)} more{_because(difference)}"


def _counted(chosen: Alternative, other: Alternative) -> str:
    """Compare by the solver's objective, for the case that it disagrees with the predicted step."""
    if chosen.plan is None or other.plan is None:
        return ""
    more = other.plan.objective_s - chosen.plan.objective_s
    word = "more" if more >= 0 else "less"
    return f"; {seconds(abs(more))} {word} by the sum that the solver minimised"


def _because(difference: Difference) -> str:
    """Name the causes of a difference, then the parts that reduce it.

    Empty if the steps differ but none of their recorded parts does.
    """
    more = difference.figure("step").more or 0.0
    parts = tuple(_parts(difference))
    told = parts and (_largest(parts, more) or tuple(_coarse(difference)))
    causes, others = (
        _listed(_phrase(*each) for each in told if (each[0] * more > 0) == is_cause)
        for is_cause in (True, False)
    )
    return f"{', because ' * bool(causes)}{causes}{', though ' * bool(others)}{others}"


def _largest(parts: tuple[Part, ...], more: float) -> tuple[Part, ...]:
    """Return the largest parts that nearly add up to `more`; none if `REASONS` parts do not."""
    told: list[Part] = []
    left = more
    for part, name in sorted(parts, key=lambda each: (-abs(each[0]), -each[0] * more)):
        if told and abs(left) <= NEARLY * abs(more):
            break
        told.append((part, name))
        left -= part
    adds_up = abs(left) <= NEARLY * abs(more)
    return tuple(told) if adds_up and len(told) <= REASONS else ()


def _coarse(difference: Difference) -> Iterator[Part]:
    """Yield the differences of compute and of all exposed communication."""
    least = SAME * (difference.figure("step").before or 0.0)
    for figure in difference.figures:
        if figure.name in COARSE and abs(figure.more or 0.0) > least:
            yield figure.more or 0.0, COARSE[figure.name]


def _listed(words: Iterable[str]) -> str:
    *first, last = [*words] or [""]
    return f"{', '.join(first)}{' and ' * bool(first)}{last}"


def _parts(difference: Difference) -> Iterator[Part]:
    """Yield the parts whose sum is the difference of the step times."""
    least = SAME * (difference.figure("step").before or 0.0)
    for figure in difference.figures:
        sign = -1.0 if figure.name == HIDDEN else 1.0
        counts = figure.kind == "communication" or figure.name in ("compute", HIDDEN)
        if counts and abs(figure.more or 0.0) > least:
            yield sign * (figure.more or 0.0), figure.name


def _phrase(part: float, name: str) -> str:
    if name == HIDDEN:
        return f"{seconds(abs(part))} {'less' if part > 0 else 'more'} hides behind compute"
    return f"{name} takes {seconds(abs(part))} {'more' if part > 0 else 'less'}"
