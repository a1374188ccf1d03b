"""Explanations: the page has every collective by axis and every candidate, a terminal the largest."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from autopar.explain.explanation import Alternative, Explanation
from autopar.plans.estimate import Flow
from autopar.render.html.why import why
from autopar.render.text import explanation, to_text
from autopar.render.text.explanation import PARTS
from autopar.render.text.unsolved import LISTED, unsolved
from tests.render.text import hand_made

KINDS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
SENT = tuple(f"{kind} on {axis}" for axis in ("x", "y") for kind in KINDS)


@pytest.fixture
def found() -> Explanation:
    """A plan that sends in eight ways, one that sends for longer, and candidates nobody solved for."""
    plan = hand_made.plan()
    before, after = (
        plan.with_estimate(replace(plan.estimate, flows=tuple(
            Flow(axis, kind, "forward", "microbatch", 1, 8, times * (1 + place) * 1e-3)
            for axis in plan.mesh.names for place, kind in enumerate(KINDS)
        )))
        for times in (1, 2)
    )  # fmt: skip
    bounds = (*(plan.objective_s + (9 - n) * 1e-3 for n in range(LISTED + 2)), math.inf, math.inf)
    ways = (
        Alternative("[R]", "whole", True, 0.04, before, before.diff(before)),
        Alternative("[S(0)]", "split", False, 0.04, after, before.diff(after)),
        *(Alternative(f"[S({n})]", "", False, bound) for n, bound in enumerate(bounds, 1)),
    )
    return Explanation("up", "up", "parameter", "up is whole.", ways)


def test_the_page_tells_every_collective(found: Explanation) -> None:
    page = why(found)
    assert all(page.count(f"{sent} ") == 2 for sent in SENT), "of both ways"
    assert "others" not in page


def test_a_terminal_tells_the_largest_and_how_many_more(found: Explanation) -> None:
    text = to_text(explanation(found))
    assert sum(text.count(f"{sent} ") for sent in SENT) == 2 * PARTS
    assert text.count(f"{len(SENT) - PARTS} others ") == 2


def test_the_page_lists_every_candidate_with_its_bound(found: Explanation) -> None:
    page = why(found)
    assert f"{LISTED + 4} candidates not solved for" in page
    left = unsolved(found)
    assert len(left) == LISTED + 4 and left[0] == ("[S(6)]", "+4.0 ms")
    assert [least for _, least in left[-2:]] == ["excluded by other fixed choices"] * 2
    for types, least in left:
        assert f"{types}</code></td>" in page and f">{least}</td>" in page


def test_a_terminal_lists_the_cheapest(found: Explanation) -> None:
    text = to_text(explanation(found))
    listed = re.findall(r"^(\[S\(\d\)\]) +\+(.*)$", text, re.MULTILINE)
    assert listed == [(f"[S({6 - n})]", f"{4 + n}.0 ms") for n in range(LISTED)]
    assert "--rows solves for more of them; 2 are not listed." in text
    few = replace(found, alternatives=found.alternatives[:4])
    assert "--rows solves for more of them." in to_text(explanation(few))
    none = replace(found, alternatives=found.alternatives[:2])
    assert "not solved for" not in to_text(explanation(none)) + why(none)
