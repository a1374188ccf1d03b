"""The report's charts: what is drawn, what is only said, and that each thing has a look and a name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autopar.plans.estimate import Flow
from autopar.replay import play
from autopar.report import charts
from tests.show import hand_made

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


def test_all_collectives_of_two_axes_have_colours_of_their_own() -> None:
    plan = hand_made.plan()
    kinds = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
    flows = tuple(Flow(axis, kind, "forward", "microbatch", 1, 8, 1e-3)
                  for axis in plan.mesh.names for kind in kinds)  # fmt: skip
    estimate = replace(plan.estimate, flows=(*plan.estimate.flows, *flows))
    made = charts.timeline(play(plan.with_estimate(estimate)))
    colours = {trace["name"]: trace["marker"]["color"] for trace in made["data"]}
    assert len(colours) == len(set(colours.values())) == 3 + len(flows) + 1, "and what hides"


def test_lanes_are_named_after_what_they_hold() -> None:
    lanes = {
        lane.rpartition(", ")[2]
        for plan in (hand_made.plan(), hand_made.pipeline())
        for lane in charts.timeline(play(plan))["layout"]["yaxis"]["categoryarray"]
    }
    assert {"collectives", "sends", "worker 0"} <= lanes
    alone = charts.timeline(play(hand_made.plan()))["layout"]["yaxis"]["categoryarray"]
    assert alone == ["ranks 0-7, collectives", "ranks 0-7"]
