"""A played step is the predicted one; other conditions change what they should, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

import autopar
from autopar.errors import InputError, PlanError
from autopar.explain.replay import Conditions, Played, play, trace_of
from autopar.explain.replay.whole import blocks_of
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.render.text import show_played, to_text
from cost_models.hardware import load
from tests.models import CASES
from tests.pipeline.simulate.test_simulate_trace import well_formed
from tests.render.text import hand_made

H100 = load("h100")
LATE_S = 1e-3


@cache
@cache
def whole(preset: str | None = "fsdp_megatron") -> Plan:
    model, inputs, loss = CASES["gpt2"]()
    plan = autopar.plan(model, (2, 2), inputs, loss=loss, hardware="h100", preset=preset)
    assert isinstance(plan, Plan)
    return plan


@cache
def staged() -> PipelinePlan:
    model, inputs, loss = CASES["gpt2"]()
    plan = autopar.plan(
        model,
        (4,),
        inputs,
        loss=loss,
        hardware="h100",
        pipeline=autopar.Pipeline(2, schedule="zb-h1", microbatches=4),
    )
    assert isinstance(plan, PipelinePlan)
    return plan


def under(plan: Plan | PipelinePlan, **asked: object) -> Played:
    return play(plan, Conditions.of(**asked), H100)  # type: ignore[arg-type]


@pytest.mark.thorough
@pytest.mark.parametrize("preset", ["ddp", "fsdp_megatron", "zero2"])
def test_a_whole_step_is_the_predicted_one(preset: str) -> None:
    plan, e = whole(preset), whole(preset).estimate
    played = play(plan)
    (row,) = played.rows
    assert played.step_s == pytest.approx(e.step_s, rel=1e-9)
    assert row.busy_s == pytest.approx(e.compute_s, rel=1e-9)
    sent = {hidden: sum(s.end - s.start for s in row.spans
                        if s.lane == "communication" and s.hidden == hidden)
            for hidden in (True, False)}  # fmt: skip
    assert sent[True] == pytest.approx(e.hidden_s, rel=1e-9, abs=1e-15)
    assert sent[False] == pytest.approx(e.exposed_s, rel=1e-9, abs=1e-15)
    rest = e.parameter_nbytes + e.gradient_nbytes + e.optimizer_nbytes
    used = [max(op.forward_nbytes, op.backward_nbytes) for op in e.operators]
    assert row.peak == pytest.approx(rest + max(used))
    assert row.memory[0] == (0.0, rest) and row.memory[-1][1] == rest
    assert list(row.memory) == sorted(row.memory, key=lambda each: each[0])


def test_memory_rises_forward_and_falls_backward() -> None:
    """By what every operator has in use, not evenly; plans that do not say so are drawn evenly."""
    plan = whole("ddp")
    e = plan.estimate
    assert e.parts is not None
    (row,) = play(plan).rows
    middle = e.parts.forward_s
    ahead = [held for second, held in row.memory if second < middle]
    behind = [held for second, held in row.memory if second > middle]
    assert len(ahead) > 20 and len(behind) > 20
    rest = row.memory[0][1]
    assert ahead[-1] - rest > 2 * (ahead[len(ahead) // 4] - rest)
    assert behind[0] - rest > 1.5 * (behind[-len(behind) // 4] - rest)
    silent = plan.with_estimate(replace(e, operators=()))
    (row,) = play(silent).rows
    assert row.peak == pytest.approx(e.memory_nbytes)


@pytest.mark.thorough
def test_a_pipelines_step_is_the_predicted_one() -> None:
    plan = staged()
    assert plan.prediction is not None
    played = play(plan)
    assert played.step_s == pytest.approx(plan.prediction.step_s, rel=1e-9)
    for row, figures in zip(played.rows, plan.prediction.stages, strict=True):
        assert row.peak == pytest.approx(figures.nbytes, rel=1e-9)


def test_the_flows_of_a_stage_are_within_its_figures() -> None:
    plan = staged()
    assert plan.prediction is not None
    copying = {(c.stage, c.worker): c.seconds for c in plan.prediction.copied}
    assert set(copying) == {(0, 0), (1, 1)}
    for figures in plan.prediction.stages:
        e = plan.of[figures.stage, figures.worker].estimate
        assert e.parts is not None
        sent = sum(
            f.seconds for f in e.flows if (f.scope, f.direction) == ("microbatch", "forward")
        )
        assert figures.forward_s == pytest.approx(e.parts.forward_s + sent, rel=1e-9)
        once = sum(f.seconds for f in e.flows if f.scope == "step")
        hidden = min(sum(s for _, s in e.parts.hideable), e.parts.covers_s)
        copies = copying.get((figures.stage, figures.worker), 0.0)
        assert figures.once_s == pytest.approx(once - hidden + e.parts.update_s + copies, rel=1e-9)


@pytest.mark.slow
def test_what_a_plan_on_a_slower_link_costs_is_what_planning_there_says() -> None:
    """The same decisions, priced by a profile whose link is half as fast."""
    model, inputs, loss = CASES["gpt2"]()
    link = replace(H100.intra_host, bytes_per_s=H100.intra_host.bytes_per_s / 1000)
    slow = replace(H100, intra_host=link)
    there = autopar.plan(model, (2, 2), inputs, loss=loss, hardware=slow, preset="ddp")
    assert isinstance(there, Plan) and there.digest == whole("ddp").digest
    played = under(whole("ddp"), bandwidth=["intra_host=0.001x"])
    assert played.step_s == pytest.approx(there.estimate.step_s, rel=1e-6)
    assert played.step_s > 1.0001 * whole("ddp").estimate.step_s


@pytest.mark.slow
def test_who_comes_late_does_so_on_any_link() -> None:
    """What a slower link is said to make of a plan is what a plan for it is predicted."""
    late = replace(H100, device=replace(H100.device, late_s=LATE_S))
    slow = replace(late.intra_host, bytes_per_s=late.intra_host.bytes_per_s / 1000)
    model, inputs, loss = CASES["gpt2"]()
    here, there = (
        autopar.plan(model, (2, 2), inputs, loss=loss, hardware=each, preset="megatron")
        for each in (late, replace(late, intra_host=slow))
    )
    assert isinstance(here, Plan) and isinstance(there, Plan)
    played = play(here, Conditions.of(bandwidth=["intra_host=0.001x"]), late)
    assert played.step_s == pytest.approx(there.estimate.step_s, rel=1e-6)


def test_conditions_change_what_they_name() -> None:
    plan = whole()
    for axis in ("x", "y"):
        before, after = play(plan).rows[0], under(plan, bandwidth=[f"{axis}=0.01x"]).rows[0]
        for was, now in zip(before.spans, after.spans, strict=True):
            longer = (now.end - now.start) / (was.end - was.start)
            assert (longer > 1 + 1e-6) == was.what.endswith(f" on {axis}"), was
    slow = under(plan, stragglers=["3=1.5x"])
    assert [row.ranks for row in slow.rows] == [(0, 1, 2), (3,)]
    e = plan.estimate
    assert slow.step_s == pytest.approx(e.step_s + 0.5 * e.compute_s, rel=1e-9)
    assert slow.rows[0].busy_s == pytest.approx(e.compute_s, rel=1e-9)


def test_conditions_of_pipelines() -> None:
    plan, planned = staged(), play(staged()).step_s
    assert under(plan, bandwidth=["intra_host=0.001x"]).step_s > planned
    assert under(plan, bandwidth=["x=100x"]).step_s <= planned
    slow_axis = under(hand_made.pipeline(), bandwidth=["y=0.1x"])
    assert slow_axis.step_s > play(hand_made.pipeline()).step_s
    assert under(plan, bandwidth=["inter_host=0.001x"]).step_s == pytest.approx(planned)
    apart, link = (
        under(hand_made.pipeline(), bandwidth=[f"{name}=0.1x"]) for name in ("x", "intra_host")
    )
    assert (
        play(hand_made.pipeline()).step_s < apart.step_s
    )  # the stages lie apart on x, where none is split
    assert apart.step_s < link.step_s  # as y is of the same links
    slow = under(plan, stragglers=["3=2x"])
    assert planned < slow.step_s <= 2 * planned
    assert slow.rows[0].busy_s == pytest.approx(play(plan).rows[0].busy_s)
    more = under(plan, microbatches=8)
    assert more.samples == 2 and more.step_s > planned
    assert more.step_s / more.samples < planned and "times as large" in more.notes[0]


def test_old_files_and_wrong_names_are_refused() -> None:
    plan = whole()
    old = plan.with_estimate(replace(plan.estimate, parts=None))
    with pytest.raises(PlanError, match="older autopar"):
        play(Plan.from_json(old.to_json()))
    found = staged()
    assert found.prediction is not None
    bare = replace(found, prediction=replace(found.prediction, passed=(), joined=()))
    with pytest.raises(PlanError, match="plan --stages auto"):
        play(bare)
    with pytest.raises(PlanError, match="--stages auto --microbatches 64"):
        under(plan, microbatches=64)
    for asked, said in (
        ({"bandwidth": ["z=2x"]}, "there are x, y, intra_host, inter_host"),
        ({"bandwidth": ["x=0x"]}, "factor above 0"),
        ({"bandwidth": ["x=2", "x=3"]}, "twice"),
        ({"bandwidth": ["x"]}, "write node=0.5x"),
        ({"stragglers": ["4=2x"]}, "no rank 4: the mesh has 4"),
        ({"stragglers": ["a=2x"]}, "whole number"),
        ({"stragglers": ["-1=2x"]}, "no rank '-1' for straggler=: ranks are whole numbers from 0"),
        ({"stragglers": ["1=nanx"]}, "pace of rank 1 cannot be xnan: write a factor above 0"),
        ({"bandwidth": ["x=1e30x"]}, r"bandwidth of x cannot be x1e\+30: .* from 0.001 to 1000"),
        ({"bandwidth": ["x=-2x"]}, "bandwidth of x cannot be x-2"),
        ({"bandwidth": ["=2x"]}, "write node=0.5x"),
    ):
        with pytest.raises(InputError, match=said):
            under(plan, **asked)
    with pytest.raises(InputError, match="pass its file with hardware="):
        play(replace(plan, hardware="mine"), Conditions.of(["x=2x"]))
    with pytest.raises(InputError, match="pass that profile"):
        play(plan, Conditions.of(["x=2x"]), load("a100"))


def test_a_profile_that_comes_with_autopar_is_known_by_its_name() -> None:
    asked = Conditions.of(["y=0.5x"])
    for plan in (hand_made.plan(), hand_made.pipeline()):
        assert play(plan, asked) == play(plan, asked, H100)


@pytest.mark.parametrize(
    ("factor", "said"),
    [(1.5, "rank 3 x1.5 slower"), (0.5, "rank 3 x2 faster"), (0.3, "rank 3 x3.33 faster")],
)
def test_a_straggler_may_be_faster(factor: float, said: str) -> None:
    assert str(Conditions(stragglers={3: factor})) == said


def test_few_calls_are_drawn_once_each() -> None:
    """The loss is summed once, at the end of the forward; every layer sums twice."""
    plan = hand_made.plan()
    (row,) = play(plan, Conditions.of(), H100).rows
    drawn = [span for span in row.spans if span.what == "all_reduce on y"]
    flow = next(f for f in plan.estimate.flows if f.collective == "all_reduce")
    assert len(drawn) == min(flow.calls, blocks_of(plan))
    few = tuple(replace(f, calls=1) if f is flow else f for f in plan.estimate.flows)
    once = replace(plan, estimate=replace(plan.estimate, flows=few))
    (row,) = play(once, Conditions.of(), H100).rows
    (span,) = (span for span in row.spans if span.what == "all_reduce on y")
    assert span.end - span.start == pytest.approx(flow.seconds)
    last = max(s.end for s in row.spans if s.what == "forward")
    assert span.start >= last
    assert "start times are not" in trace_of(play(plan))["otherData"]["notes"]


@pytest.mark.parametrize("made", [whole, staged])
def test_traces_are_well_formed(made: Callable[[], Plan | PipelinePlan]) -> None:
    content = json.loads(json.dumps(trace_of(under(made(), stragglers=["1=1.2x"]))))
    well_formed([{"tid": 0, **event} for event in content["traceEvents"]])


def test_golden(golden: Callable[[str, str], None]) -> None:
    asked = Conditions.of(["y=0.5x"], None, ["3=1.5x"])
    golden("show_played.txt", to_text(show_played(play(hand_made.plan(), asked, H100))))
    golden("show_played_pipeline.txt", to_text(show_played(play(hand_made.pipeline()))))
    slow = Conditions.of(microbatches=16, stragglers=["3=1.5x"])
    golden("show_played_what_if.txt", to_text(show_played(play(hand_made.pipeline(), slow))))


def test_plans_with_more_figures_are_read_and_written() -> None:
    for plan in (whole(), staged()):
        assert type(plan).from_json(plan.to_json()) == plan  # type: ignore[attr-defined]
