"""Traces obey the trace event format: phases, begins and ends that match, arrows between slices."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.pipeline.schedules import Edge, Schedule, build
from autopar.pipeline.simulate import Costs, Link, StageCost, Traffic, own_links, simulate, trace
from tests.pipeline.schedules.drawing import schedules
from tests.pipeline.simulate.drawing_costs import random_costs

REQUIRED = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid"},
    "C": {"name", "ts", "pid", "args"},
    "M": {"name", "pid", "args"},
    "b": {"name", "cat", "id", "ts", "pid", "tid"},
    "e": {"name", "cat", "id", "ts", "pid", "tid"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
}
"""By phase: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU"""


def well_formed(events: list[dict[str, Any]]) -> None:
    for event in events:
        assert REQUIRED[event["ph"]] <= set(event), event
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            span = (event["ts"], event["ts"] + event["dur"])
            rows.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in rows.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(spans)):
            assert start >= end - 1e-6 * max(1.0, end)
    at = {phase: {(e["cat"], e["id"]): e for e in events if e["ph"] == phase} for phase in "besf"}
    for first, last in ("be", "sf"):
        assert at[first].keys() == at[last].keys()
        for key, event in at[first].items():
            assert event["ts"] <= at[last][key]["ts"] + 1e-6
            assert event["name"] == at[last][key]["name"]
    for arrow in (*at["s"].values(), *at["f"].values()):
        spans = rows[arrow["pid"], arrow["tid"]]
        assert any(a - 1e-3 <= arrow["ts"] <= b + 1e-3 for a, b in spans)
    named = Counter((e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M")
    assert max(named.values()) == 1


@settings(max_examples=50)
@given(schedules(), st.randoms(use_true_random=False))
def test_format(drawn: tuple[Schedule, tuple[Edge, ...]], random: Random) -> None:
    schedule, edges = drawn
    costs = random_costs(random, schedule.stages, len(schedule.workers), edges)
    made = trace(simulate(schedule, costs))
    assert json.loads(json.dumps(made)) == made
    well_formed(made["traceEvents"])


def test_contents() -> None:
    schedule = build("chimera", 2, 2)
    costs = Costs(
        (StageCost(1, 1, 1, kept=8, static=3, reduction=1),) * 2,
        (Traffic(0, 1, 2.0, 2.0),),
        own_links(2, Link(0.5, 4.0)),
    )
    simulated = simulate(schedule, costs)
    events = trace(simulated)["traceEvents"]
    actions = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    assert {(e["tid"], e["name"], e["ts"], e["dur"]) for e in actions} == {
        (run.worker, str(run.action), run.start * 1e6, (run.end - run.start) * 1e6)
        for row in simulated.ran
        for run in row
    }
    begins = [e for e in events if e["ph"] == "b"]
    assert len(begins) == len(simulated.transfers) == 4
    assert "activations 0 to 1, microbatch 0" in {e["name"] for e in begins}
    assert "gradients 1 to 0, microbatch 1" in {e["name"] for e in begins}
    assert len([e for e in events if e.get("cat") == "reduction"]) == 4
    most = max(e["args"]["bytes"] for e in events if e["ph"] == "C")
    assert most == max(simulated.peaks) == 3 + 3 + 8 + 8
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {"chimera", "worker 1, stages 0, 1", "0 to 1", "1 to 0", "sums of gradients"} <= names


def test_updates_end_the_step_and_empty_lanes_have_no_name() -> None:
    schedule = build("1f1b", 2, 4)
    costs = Costs(
        (StageCost(1, 1, 1, update=3), StageCost(1, 1, 1, update=2)),
        (Traffic(0, 1, 2.0, 2.0),),
        own_links(2, Link(0.5, 4.0)),
    )
    simulated = simulate(schedule, costs)
    events = trace(simulated)["traceEvents"]
    updates = {e["tid"]: e for e in events if e.get("name") == "update"}
    assert [updates[worker]["dur"] for worker in (0, 1)] == [3e6, 2e6]
    ends = [each["ts"] + each["dur"] for each in updates.values()]
    assert max(ends) == simulated.step * 1e6
    assert "sums of gradients" not in {e["args"]["name"] for e in events if e["ph"] == "M"}
