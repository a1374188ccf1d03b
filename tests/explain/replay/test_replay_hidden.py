"""What hides beside the backward when a link changes: no axis pays for another's link."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autopar.explain.replay import Conditions, Played, play
from autopar.plans.estimate import Flow, Parts
from autopar.plans.plan import Plan
from tests.render.text import hand_made

EACH_S = 0.1


def reducing(covers_s: float) -> Plan:
    """A step that ends with a sum on either axis; both may hide, as far as there is room."""
    plan = hand_made.plan()
    flows = tuple(
        Flow(axis, "all_reduce", "backward", "step", 1, 2**30, EACH_S) for axis in ("x", "y")
    )
    parts = Parts(0.01, 1.0, 0.01, (("x", EACH_S), ("y", EACH_S)), covers_s)
    hidden_s = min(covers_s, 2 * EACH_S)
    estimate = replace(
        plan.estimate, flows=flows, parts=parts, hidden_s=hidden_s, exposed_s=2 * EACH_S - hidden_s
    )
    return plan.with_estimate(estimate)


def exposed(played: Played, axis: str) -> float:
    return sum(
        span.end - span.start for span in played.rows[0].spans if span.what.endswith(f" on {axis}")
    )


@pytest.mark.parametrize("covers_s", [0.0, 0.05, 1.0])
@pytest.mark.parametrize(("slow", "other"), [("x", "y"), ("y", "x")])
def test_a_slower_axis_leaves_the_other_as_it_was(slow: str, other: str, covers_s: float) -> None:
    plan = reducing(covers_s)
    planned, changed = play(plan), play(plan, Conditions(bandwidth={slow: 0.5}))
    assert exposed(changed, other) == pytest.approx(exposed(planned, other), abs=1e-12)
    more = changed.step_s - planned.step_s
    assert exposed(changed, slow) - exposed(planned, slow) == pytest.approx(more, abs=1e-12)
    assert (more > 0.09) == (covers_s < 1)


def test_what_a_faster_axis_leaves_the_other_takes() -> None:
    plan = reducing(covers_s=0.15)
    changed = play(plan, Conditions(bandwidth={"y": 2.0}))
    assert exposed(changed, "y") == pytest.approx(0.0, abs=1e-4)
    assert exposed(changed, "x") < exposed(play(plan), "x") == pytest.approx(0.025)


@pytest.mark.parametrize("pace", [0.5, 2.0])
def test_a_backward_of_another_length_hides_as_much(pace: float) -> None:
    plan = reducing(covers_s=0.08)
    changed = play(plan, Conditions(stragglers={rank: pace for rank in range(8)}))
    sent = exposed(changed, "x") + exposed(changed, "y")
    assert sent == pytest.approx(2 * EACH_S - 0.08 * pace)
