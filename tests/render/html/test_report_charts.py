"""The report's charts: what is drawn, what is only said, and that each thing has a look and a name."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from autopar.explain.replay import play
from autopar.plans.estimate import Flow
from autopar.render.html import charts, report
from tests.render.text import hand_made

PEAK = hand_made.plan().estimate.memory_nbytes


def drawn(name: str, limit: float | None) -> list[dict[str, Any]]:
    """The traces of a chart that has a limit."""
    plan = hand_made.plan()
    if name == "memory":
        made = charts.memory(play(plan), limit)
    else:
        here = plan.estimate.step_s, plan.estimate.memory_nbytes
        made = charts.frontier((plan, hand_made.other()), here, limit)
    found = made["data"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("name", ["memory", "frontier"])
def test_a_limit_far_away_is_told_not_drawn(name: str) -> None:
    near, far = drawn(name, 2.5 * PEAK)[-1], drawn(name, 18 * PEAK)[-1]
    assert near["name"] == "limit, 7.5 GiB" and None not in near["x"] + near["y"]
    assert near["y" if name == "memory" else "x"] == pytest.approx([2.5 * PEAK / 2**30] * 2)
    assert far["name"] == "limit, 54.0 GiB: 18 times the peak, not drawn"
    assert far["x"] == far["y"] == [None]
    for none in (None, float("inf")):
        assert all("limit" not in trace["name"] for trace in drawn(name, none))


def test_a_single_kind_is_named() -> None:
    flow = Flow("x", "all_reduce", "forward", "microbatch", 1, 8, 1e-3)
    made = charts.communication([("", [flow])])
    assert [trace["name"] for trace in made["data"]] == ["all_reduce"]
    assert made["layout"]["showlegend"], "a browser names no single trace by itself"


def test_all_collectives_of_two_axes_have_looks_of_their_own() -> None:
    plan, flows = hand_made.of_all_collectives()
    made, _ = charts.timeline(play(plan), plan.mesh.names)
    looks = {trace["name"]: look(trace) for trace in made["data"]}
    assert len(looks) == len(set(looks.values())) == 3 + len(flows) + 1, "and what hides"


def look(trace: dict[str, Any]) -> tuple[str, str]:
    """Of a bar's trace: its colour and its pattern."""
    return trace["marker"]["color"], trace["marker"]["pattern"]["shape"]


def test_a_kind_has_one_colour_in_every_chart() -> None:
    """On any axis, beside whatever else, and in reports of other plans; no two kinds have the same."""
    plan, flows = hand_made.of_all_collectives()
    few = [flow for flow in flows if flow.collective == "all_to_all"]
    drawn = [
        charts.timeline(play(plan), plan.mesh.names)[0],
        charts.timeline(play(hand_made.plan()), plan.mesh.names)[0],
        charts.timeline(play(hand_made.pipeline()))[0],
        charts.communication([("", plan.estimate.flows)], plan.mesh.names),
        charts.communication([("stage 0, ", few)], plan.mesh.names),
    ]
    colours: defaultdict[str, set[str]] = defaultdict(set)
    for trace in (trace for chart in drawn for trace in chart["data"]):
        kind = trace["name"].removesuffix(charts.BESIDE).partition(" on ")[0]
        colours[kind].add(trace["marker"]["color"])
    assert {"forward", "all_gather", "sends", "reduce gradients"} <= set(colours)
    assert all(len(each) == 1 for each in colours.values()), colours
    assert len(colours) == len(set.union(*colours.values()))


def test_an_axis_has_one_pattern_in_every_chart() -> None:
    plan, _ = hand_made.of_all_collectives()
    timeline, _ = charts.timeline(play(plan), plan.mesh.names)
    (summed,) = (
        trace for trace in charts.communication(
            [("", plan.estimate.flows)], plan.mesh.names)["data"] if trace["name"] == "all_gather"
    )  # fmt: skip
    by_axis = dict(zip(summed["x"], summed["marker"]["pattern"]["shape"], strict=True))
    shapes = {trace["name"]: look(trace)[1] for trace in timeline["data"]}
    assert by_axis == {axis: shapes[f"all_gather on {axis}"] for axis in plan.mesh.names}


def test_lanes_are_named_after_what_they_hold() -> None:
    lanes = {
        lane.rpartition(", ")[2]
        for plan in (hand_made.plan(), hand_made.pipeline())
        for lane in charts.timeline(play(plan))[0]["layout"]["yaxis"]["categoryarray"]
    }
    assert {"collectives", "sends", "worker 0"} <= lanes
    alone = charts.timeline(play(hand_made.plan()))[0]["layout"]["yaxis"]["categoryarray"]
    assert alone == ["ranks 0-7, collectives", "ranks 0-7"]


def test_of_many_spans_every_row_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    played = play(hand_made.pipeline(4, 12))
    every = [span for row in played.rows for span in row.spans]
    whole, left = charts.timeline(played)
    assert left == 0 and charts.FOLDED not in {trace["name"] for trace in whole["data"]}
    monkeypatch.setattr(charts, "MOST_SPANS", 41)
    made, left = charts.timeline(played)
    bars = {trace["name"]: trace for trace in made["data"]}
    folded = bars.pop(charts.FOLDED)
    drawn = [
        (y, b, x) for t in bars.values() for y, b, x in zip(t["y"], t["base"], t["x"], strict=True)
    ]
    assert len(drawn) == 41 and len(drawn) + left == len(every)
    assert sum(int(said.split()[0]) for said in folded["customdata"]) == left
    assert made["layout"]["yaxis"] == whole["layout"]["yaxis"], "all lanes are there"
    for row in played.rows:
        mine = [(b, b + x) for y, b, x in drawn if y.split(",")[0] == row.name.split(" (")[0]]
        assert len(mine) >= 10
        first, last = (f(s.start for s in row.spans) for f in (min, max))
        assert min(mine)[0] == pytest.approx(1e3 * first, abs=1e-3)
        assert max(mine)[0] == pytest.approx(1e3 * last, rel=1e-5), "to the end of the step"


def test_rows_with_few_spans_leave_their_share_to_others() -> None:
    assert charts._shares([3, 100, 100], 21) == [3, 9, 9]
    assert charts._shares([5, 7], 20) == [5, 7] and charts._shares([5, 7], 0) == [0, 0]


def test_what_is_not_drawn_is_said_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    assert charts.FOLDED not in report(hand_made.pipeline(4, 12))
    monkeypatch.setattr(charts, "MOST_SPANS", 41)
    _, left = charts.timeline(play(hand_made.pipeline(4, 12)))
    assert f"{left} spans are not drawn one by one" in report(hand_made.pipeline(4, 12))
