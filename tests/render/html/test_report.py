"""The report: whole, self-contained, true to the plan."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autopar
from autopar.errors import InputError
from autopar.explain.explanation import Alternative, Explanation
from autopar.ir.mesh import Mesh
from autopar.ir.placement import R, S, Sharding
from autopar.ir.units import seconds
from autopar.plans.identity import Identity
from autopar.plans.pipeline_data import Compared
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.plans.record import View
from autopar.profile.traced_step import Beside, FlowLine, Line
from autopar.render.html import Extras, report, roofline
from autopar.render.html.boxes import HIGH, LEAST, LOW, WIDE, box
from cost_models.hardware import load
from tests.models import CASES
from tests.render.text import hand_made

VOID = {"meta", "rect", "line", "br"}
CHARTS = {"timeline-chart", "memory-chart", "communication-chart"}


class Page(HTMLParser):
    """Tags that match, ids, links, and text by section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.addresses: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.ids[named.get("id") or ""] += 1
        self.addresses += [named[key] or "" for key in ("src", "href") if key in named]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def parsed(text: str) -> Page:
    """The page without plotly, which is not ours to check."""
    return Page(re.sub(r"<script>/\*\*\n\* plotly.*?</script>", "", text, flags=re.DOTALL))


def figures(text: str) -> dict[str, dict]:  # type: ignore[type-arg]
    found = re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)
    assert found
    content = json.loads(found[1].replace("<\\/", "</"))
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("plan", [hand_made.plan(), hand_made.other(), hand_made.pipeline(4, 12)])
def test_the_page_is_whole_and_loads_nothing(plan: Plan | PipelinePlan) -> None:
    text = report(plan)
    page = parsed(text)
    assert all(count == 1 for name, count in page.ids.items() if name)
    assert all(address[0] == "#" and address[1:] in page.ids for address in page.addresses)
    assert "default-src 'none'" in text and len(text.encode()) < 6e6
    assert set(figures(text)) == CHARTS and set(figures(text)) <= page.ids.keys()
    for name in ("mesh", "tensors", "timeline", "memory", "communication", "frontier", "roofline"):
        assert name in page.ids
    said = " ".join(page.text)
    assert plan.digest in said and "model.layers.0" in said
    assert ("stages" in page.ids) == isinstance(plan, PipelinePlan)


def test_what_the_charts_hold_is_the_plans() -> None:
    plan = hand_made.plan()
    found = figures(report(plan))
    shown = found["timeline-chart"]["data"]
    compute = sum(
        sum(trace["x"]) for trace in shown if trace["name"] in ("forward", "backward", "update")
    )
    assert compute == pytest.approx(plan.estimate.compute_s * 1e3, rel=1e-4)
    ends = [b + x for trace in shown for b, x in zip(trace["base"], trace["x"], strict=True)]
    assert max(ends) == pytest.approx(plan.estimate.step_s * 1e3, rel=1e-4)
    held, limit = found["memory-chart"]["data"]
    assert max(held["y"]) * 2**30 == pytest.approx(plan.estimate.memory_nbytes)
    assert limit["name"].startswith("limit, 40.0 GiB")
    sent = sum(sum(trace["y"]) for trace in found["communication-chart"]["data"])
    assert sent == pytest.approx(sum(f.seconds for f in plan.estimate.flows) * 1e3, rel=1e-4)


def test_a_pipelines_communication_is_of_all_microbatches() -> None:
    plan = hand_made.pipeline(2, 12)
    sent = figures(report(plan))["communication-chart"]["data"]
    (bars,) = sent
    for height, each in zip(bars["y"], plan.stages, strict=True):
        flows = each.plan.estimate.flows
        expected = sum(f.seconds * (12 if f.scope == "microbatch" else 1) for f in flows)
        assert height == pytest.approx(expected * 1e3, rel=1e-4)


def test_the_file_with_most_operators_is_beside_emitted_code_and_others_fold_away() -> None:
    files = (("model.py", "here"), ("loss.py", "there"))
    text = report(hand_made.plan(), Extras(emitted=(("emitted", "code"),), written=files))
    places = [text.index(f"<p>{name}</p>") for name in ("model.py", "emitted", "loss.py")]
    fold = text.index("<summary>other files that its comments mention</summary>")
    assert places[0] < places[1] < fold < places[2]
    parsed(text)
    alone = report(hand_made.plan(), Extras(emitted=(("emitted", "code"),), written=files[:1]))
    assert "other files" not in alone


def test_names_are_text_and_never_markup() -> None:
    evil = "</script><script>alert(1)</script>"
    plan = replace(hand_made.plan(), model=evil)
    text = report(plan, Extras(emitted=((evil, evil),), written=(("mine", "a < b & c"),)))
    assert "<script>alert" not in text and "a &lt; b &amp; c" in text
    parsed(text)


def test_over_the_limit_is_said() -> None:
    small = replace(hand_made.plan(), asked=replace(hand_made.plan().asked, memory_limit=2**20))
    assert "Needs 3.0 GiB, the limit is 1.0 MiB" in " ".join(parsed(report(small)).text)
    assert "Needs" not in " ".join(parsed(report(hand_made.plan())).text)


def test_a_limit_that_nobody_asked_for_is_the_devices() -> None:
    def said(limit: float | None, device: float | None = 8 * 2**30) -> str:
        plan = hand_made.plan()
        plan = replace(plan, asked=replace(plan.asked, memory_limit=limit))
        return " ".join(parsed(report(plan, Extras(limit_nbytes=device))).text)

    assert "none asked; the device has 8.0 GiB" in said(None)
    assert "none asked" in said(None, None) and "the device has" not in said(None, None)
    assert "memory limit 6.0 GiB" in said(6 * 2**30)
    assert "none: plans may be larger" in said(math.inf) and "inf" not in said(math.inf).split()
    assert "Needs 3.0 GiB, the device has 1.0 GiB" in said(None, 2**30)


def test_what_a_plan_was_compared_with_is_on_the_page() -> None:
    views = (View("zb-h1 of 8 microbatches on 1+1", 0.05), View("1f1b on 2+2", None))
    flat = " ".join(parsed(report(replace(hand_made.plan(), views=views))).text)
    assert "zb-h1 of 8 microbatches on 1+1 50.0 ms 1f1b on 2+2 does not fit" in flat
    assert "this plan, no stages on x=2, y=4 1.3 s" in flat
    meshes = (View("x=8", 1.5), View("x=2, y=4", 1.25))
    chosen = parsed(report(replace(hand_made.plan(), views=meshes)))
    assert "this plan" not in " ".join(chosen.text) and "compared" in chosen.ids
    pipe = hand_made.pipeline()
    assert pipe.prediction
    found = replace(pipe.prediction, compared=(Compared("no stages on x=8", 0.3),))
    assert "no stages on x=8 300.0 ms" in " ".join(
        parsed(report(replace(pipe, prediction=found))).text
    )
    assert "compared" not in parsed(report(pipe)).ids


def test_a_pipelines_page_says_only_what_can_be_followed() -> None:
    pipe = hand_made.pipeline()
    said = " ".join(parsed(report(pipe)).text)
    assert "--measured" not in said
    assert "optimality no plan of the planner's table takes less than 150.0 ms (relaxation)" in said
    assert (
        "stage 1 on worker 1: the filled part is on rank 4" in said and "is on rank 0;" not in said
    )
    assert '<td class="n" data-is="stage">1</td>' in report(pipe), "a phone says what the number is"
    assert pipe.prediction
    forced = replace(pipe, prediction=replace(pipe.prediction, bound_s=None))
    assert "optimality no bound is known" in " ".join(parsed(report(forced)).text)


def test_an_old_plan_file_has_a_page() -> None:
    plan = hand_made.plan()
    old = plan.with_estimate(replace(plan.estimate, parts=None))
    assert "older autopar" in " ".join(parsed(report(old)).text)


def test_with_the_model_and_a_frontier() -> None:
    model, inputs, loss = CASES["mlp"]()
    made = autopar.compile_model(model, (2, 2), inputs, loss=loss, hardware="h100")
    drawn = roofline(made.plan, made.graph, load("h100"))
    assert sum(dot.calls for dot in drawn.dots) > 2
    assert all(dot.flops / dot.seconds <= max(drawn.peaks.values()) for dot in drawn.dots)
    extras = Extras((made.plan, made.plan), drawn, (("emitted", made.source),), (("mine", "x"),))
    text = report(made.plan, extras)
    assert set(figures(text)) == {*CHARTS, "roofline-chart", "frontier-chart"} - (
        set() if made.plan.estimate.flows else {"communication-chart"}
    )
    assert "class" in " ".join(parsed(text).text)


def test_why_is_on_the_page() -> None:
    before, after = hand_made.plan(), hand_made.other()
    ways = (
        Alternative("[R, S(0)]", "split by rows", True, 0.04, before, before.diff(before)),
        Alternative("[R, R]", "replicated", False, 0.05, after, before.diff(after)),
        Alternative("[R, S(1)]", "", False, math.inf, why="impossible beside <what> must be"),
    )
    found = Explanation(
        "up", "model.up", "operator", "up is split by rows; if ...", ways, "of a part"
    )
    text = report(before, Extras(explained=(found,)))
    page = parsed(text)
    assert '<span class="line"></span>' not in text, "a phone would label it"
    assert '<code class="path">[R, R]</code>' in text, "it wraps"
    said = " ".join(page.text)
    for words in ("up is split by rows; if ...", "split by rows", "replicated", "[R, R]", "+2.0 GiB",
                  "impossible beside <what> must be", "Figures are of a part."):  # fmt: skip
        assert words.replace("+2.0 GiB", "-2.0 GiB") in said, words
    assert "--explain TARGET" in " ".join(parsed(report(before)).text)


def test_what_was_measured_is_beside_what_was_predicted() -> None:
    plan = hand_made.plan()
    line = Line("model.layers.0", "lm.py:3", "x = a < b", 1, "modelled", 0.002, 0.004, 0.002, 0.004)
    own = Line("(autograd)", "", "", 0, "", 0.0, 0.1, 0.0, 0.1)
    sent = FlowLine("x", "all_gather", "forward", 3, 4, 0.001, 0.002)
    step_s = plan.estimate.step_s
    found = Beside(Identity.of(plan), plan.digest, step_s, step_s / 0.9, 1.1, 0.01, 0.02, (line, own),
                   (sent,))  # fmt: skip
    said = " ".join(parsed(report(plan, Extras(measured=found))).text)
    assert f"The step took {seconds(step_s / 0.9)}; the prediction was {seconds(step_s)}" in said
    assert "10.0% too short" in said
    assert "x = a < b" in said and "-50%" in said and "(autograd)" not in said
    faster = replace(found, measured_step_s=step_s / 1.2)
    assert "20.0% too long" in " ".join(parsed(report(plan, Extras(measured=faster))).text)
    with pytest.raises(InputError, match="measures another plan"):
        report(plan, Extras(measured=replace(found, plan="0" * 12)))
    assert "--measured step.json" in " ".join(parsed(report(plan)).text)


def test_fine_cuts_are_no_grey_patch() -> None:
    mesh = Mesh.of(8, 8)
    fine = box((8192, 8192), Sharding.parse("[S(0, of=8), S(0)]"), mesh)
    assert fine.count("<line") == 7 and 'height="1.50"' in fine


@settings(max_examples=60)
@given(st.data())
def test_a_box_is_filled_by_as_much_as_rank_0_holds(data: st.DataObject) -> None:
    mesh = Mesh.of(*data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=3)))
    shape = data.draw(st.sampled_from([(64,), (64, 64), (64, 128)]))
    kinds = st.one_of(
        st.just(R), st.builds(S, st.integers(0, len(shape) - 1), st.sampled_from([1, 2, 4]))
    )
    form = Sharding(tuple(data.draw(kinds) for _ in mesh))
    if not form.fits(shape, mesh):
        return
    drawn = box(shape, form, mesh)
    filled = re.findall(
        r'class="mine" x="[\d.]+" y="[\d.]+" width="([\d.]+)" height="([\d.]+)"', drawn
    )
    area = sum(float(w) * float(h) for w, h in filled)
    whole = WIDE * (HIGH if len(shape) > 1 else LOW)
    share = math.prod(form.local_shape(shape, mesh)) / math.prod(shape)
    if not re.search(rf'(width|height)="{LEAST:.2f}"', drawn):
        assert area / whole == pytest.approx(share, rel=0.05)
    assert area / whole >= 0.95 * share
    assert "x".join(map(str, form.local_shape(shape, mesh))) in drawn
