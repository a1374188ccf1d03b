"""What differs between two plans: golden text, and laws that hold for any two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autopar.errors import InputError, PlanError
from autopar.ir.placement import I
from autopar.plans.focus import tensor_facts
from autopar.render.html.tables import parameters
from autopar.render.text import changed, show_difference, to_text
from autopar.render.text.table import WIDTH
from tests.render.text import hand_made


def test_golden(golden: Callable[[str, str], None]) -> None:
    found = hand_made.plan().diff(hand_made.other())
    golden("show_difference.txt", to_text(show_difference(found)))


def test_golden_of_pipelines(golden: Callable[[str, str], None]) -> None:
    one, two = hand_made.pipeline(), hand_made.pipeline(3, 8)
    text = to_text(show_difference(one.diff(two)))
    golden("show_difference_pipelines.txt", text)
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize("plan", [hand_made.plan(), hand_made.pipeline()])
def test_a_plan_does_not_differ_from_itself(plan: hand_made.Plan) -> None:
    found = plan.diff(plan)
    assert found.changes == ()
    assert all(figure.before == figure.after for figure in found.figures)
    assert "make the same decisions" in changed(found)


@pytest.mark.parametrize("plan", [hand_made.plan(), hand_made.pipeline()])
def test_what_is_no_plan_or_figure_is_refused(plan: hand_made.Plan) -> None:
    with pytest.raises(InputError, match="compared with another plan, not with 3: pass"):
        plan.diff(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"no figure 'setp'\. Did you mean 'step'"):
        plan.diff(plan).figure("setp")
    with pytest.raises(InputError, match=r"no figure 'zzz'\. Names look like .*peak"):
        plan.diff(plan).figure("zzz")


def test_the_other_way_round_is_the_opposite() -> None:
    one, two = hand_made.plan(), hand_made.other()
    there, back = one.diff(two), two.diff(one)
    assert {(c.name, c.before, c.after) for c in there.changes} == {
        (c.name, c.after, c.before) for c in back.changes
    }
    assert there.figure("step").more == -(back.figure("step").more or 0.0)
    assert "faster" in changed(there) and "slower" in changed(back)


def test_every_decision_is_seen() -> None:
    one = hand_made.plan()
    stored = replace(one.parameters[0], stored=one.parameters[0].stored.with_type(0, I))
    found = one.diff(replace(one, parameters=(stored, *one.parameters[1:])))
    assert [(c.name, c.what) for c in found.changes] == [("model.embed.weight", "stored")]
    again = replace(one.conversions[0], regather=True)
    found = one.diff(replace(one, conversions=(again, *one.conversions[1:])))
    assert [(c.what, c.after) for c in found.changes] == [
        ("in the step", "[S(0), S(1)], gathered again")
    ]
    found = one.diff(replace(one, choices=(*one.choices[:-1], replace(one.choices[-1], node="x"))))
    assert {(c.name, c.before == "", c.after == "") for c in found.changes} == {
        ("loss", False, True), ("x", True, False)
    }  # fmt: skip


def test_a_plan_beside_a_pipelines() -> None:
    one, two = hand_made.plan(), hand_made.pipeline()
    one = replace(one, parameters=one.parameters[:-1])
    found = one.diff(two)
    facts = {change.name: (change.before, change.after) for change in found.of("plan")}
    assert facts["stages"] == ("1", "2")
    assert found.figure("step").before == one.estimate.step_s
    assert not found.of("stage"), "without stages there is none to be in another"
    text = to_text(show_difference(found))
    assert "the worker that idles least" in text and "None" not in text


def test_plans_of_two_models_are_refused() -> None:
    one = hand_made.plan()
    longer = replace(one.parameters[0], shape=(513, 64))
    for other, said in (
        (replace(one, model="OtherLM"), "the first is for TinyLM, the second for OtherLM"),
        (replace(one, parameters=one.parameters[1:]), "only the first has model.embed.weight"),
        (replace(one, parameters=(longer, *one.parameters[1:])), "512x64 in the first, 513x64"),
    ):
        with pytest.raises(PlanError, match=said):
            one.diff(other)


def test_what_was_not_sent_before_is_more() -> None:
    """A plan that sends nothing is compared as any other."""
    plan = hand_made.plan()
    silent = replace(plan, estimate=replace(plan.estimate, flows=(), exposed_s=0.0, hidden_s=0.0))
    found = silent.diff(plan).figure("all_reduce on y")
    assert (found.before, found.more) == (0.0, found.after) and found.after


def test_what_is_never_gathered_is_not_gathered_again() -> None:
    """A preset may decide it of weights that no operator gathers."""
    one = hand_made.plan()
    name = "model.embed.weight"
    ready = replace(one.parameters[0], regather=True)
    decided = replace(one, parameters=(ready, *one.parameters[1:]))
    assert one.diff(decided).changes == ()
    assert tensor_facts(decided, name).made == "[S(0), S(1)]"
    assert parameters(decided).count("] again") == parameters(one).count("] again")
