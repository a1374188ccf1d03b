"""In a notebook values are the tables of the command line."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest

from autopar.explain.compare import Comparison, Contender
from autopar.explain.explanation import Alternative, Explanation
from autopar.explain.replay import play
from autopar.render.text import (
    contenders,
    explanation,
    show_difference,
    show_pipeline,
    show_plan,
    show_played,
    to_text,
)
from tests.render.text import hand_made

PLAN = hand_made.plan()
CHANGE = PLAN.diff(replace(PLAN, preset="ddp"))
CHOSEN = Alternative("[S(0), R] <&>", "split by batch", True, 0.1, PLAN, PLAN.diff(PLAN))
WHY = Explanation("up", "up/linear", "operator", "up is split by batch.", (CHOSEN,))
BOTH = Comparison((Contender("fsdp", PLAN), Contender("ddp", None, "too large")), 2.0**30)


@pytest.mark.parametrize(
    ("value", "drawn"),
    [
        (PLAN, show_plan(PLAN)),
        (hand_made.pipeline(), show_pipeline(hand_made.pipeline())),
        (CHANGE, show_difference(CHANGE)),
        (WHY, explanation(WHY)),
        (Contender("fsdp", PLAN), contenders([("fsdp", PLAN, "")])),
        (Contender("ddp", None, "too large"), contenders([("ddp", None, "too large")])),
        (BOTH, contenders([("fsdp", PLAN, ""), ("ddp", None, "too large")], 2.0**30)),
        (play(PLAN), show_played(play(PLAN))),
    ],
    ids=[
        "plan",
        "pipeline",
        "difference",
        "explanation",
        "contender",
        "no plan",
        "comparison",
        "step",
    ],
)
def test_html_is_what_is_printed(value: object, drawn: object) -> None:
    made = value._repr_html_()  # type: ignore[attr-defined]
    assert made.startswith("<pre") and made.endswith("</pre>")
    assert "background" not in made, "a notebook may be dark"
    text = html.unescape(re.sub(r"<[^>]+>", "", made))
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    assert lines == str(value) == to_text(drawn).rstrip("\n")  # type: ignore[arg-type]
    assert repr(value).lstrip("<").startswith(type(value).__name__)


def test_titles_are_bold() -> None:
    assert "font-weight: bold" in PLAN._repr_html_()
