"""What a profile says of ranks that wait for each other, in the seconds of plans and pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
import torch

import autopar
from autopar.cost.operators import operator_seconds
from autopar.cost.prices import Prices
from autopar.ir.mesh import Mesh
from autopar.plans.estimate import Estimate
from autopar.plans.pipeline_plan import PipelinePlan
from autopar.plans.plan import Plan
from autopar.sharding.asked import posed_for
from autopar.verify import certify
from cost_models.collectives import lateness
from cost_models.hardware import Hardware, load
from cost_models.measured.times import Answer, Times
from tests.cost.test_overlap import ROWS, WIDTH, Deep

BEHIND, LATE_S = 0.25, 1e-3


def waiting(behind: float = BEHIND, late_s: float = LATE_S) -> Hardware:
    """H100s that wait for each other, with memory so fast that the same plans are best."""
    hardware = load("h100")
    device = replace(hardware.device, behind=behind, late_s=late_s, memory_efficiency=0.8)
    return replace(hardware, device=device)


def planned(hardware: Hardware, preset: str) -> Plan:
    inputs = {"x": torch.zeros(ROWS, WIDTH)}
    plan = autopar.plan(Deep(), (2,), inputs, hardware=hardware, preset=preset)
    assert isinstance(plan, Plan)
    return plan


def calls(found: Estimate) -> int:
    """Collectives that compute waits for."""
    return sum(flow.calls for flow in found.flows if flow.scope == "microbatch")


@pytest.mark.parametrize("preset", ["ddp", "fsdp", "megatron"])
def test_a_rank_computes_as_long_as_the_slowest(preset: str) -> None:
    before, after = (planned(w, preset).estimate for w in (waiting(0.0, 0.0), waiting(late_s=0.0)))
    assert after.compute_s == pytest.approx((1 + BEHIND) * before.compute_s)
    assert after.flows == before.flows


class Timed:
    """A database in which every operator takes as long, on a rank alone."""

    setting, digest = "here", ""

    def of(self, call: object, modelled: object) -> Answer:
        return Answer(1.0, 2.0, "measured")


def test_what_was_timed_of_one_rank_waits_as_well() -> None:
    plan = planned(waiting(), "ddp")
    graph = autopar.compile_model(Deep(), (2,), {"x": torch.zeros(ROWS, WIDTH)}).graph
    prices = Prices(plan.mesh, waiting(), times=cast("Times", Timed()))
    choice = next(c for c in plan.choices if graph.node[c.node].op == "aten.linear.default")
    found = operator_seconds(graph.node[choice.node], choice.sharding, graph, prices)
    assert (found.forward_s, found.backward_s) == (1 + BEHIND, 2 * (1 + BEHIND))


@pytest.mark.parametrize("preset", ["ddp", "fsdp", "megatron"])
def test_every_collective_that_compute_waits_for_is_late(preset: str) -> None:
    before, after = (planned(w, preset).estimate for w in (waiting(0.0, 0.0), waiting(behind=0.0)))
    assert after.compute_s == before.compute_s and calls(after) == calls(before) > 0
    assert after.exposed_s == pytest.approx(before.exposed_s + LATE_S * calls(before))


def test_the_solver_sees_what_the_estimate_says() -> None:
    """Of collectives of activations; buckets it prices apart, as ever."""
    plan, before = planned(waiting(), "megatron"), planned(load("h100"), "megatron")
    added_s = plan.estimate.step_s - before.estimate.step_s
    assert plan.objective_s - before.objective_s == pytest.approx(added_s, rel=1e-3)


def test_plans_with_waiting_are_sound() -> None:
    """A certificate prices as the plan does, and knows a profile of equal ranks for another."""
    made = autopar.compile_model(
        Deep(), (2,), {"x": torch.zeros(ROWS, WIDTH)}, hardware=waiting(), preset="fsdp"
    )
    faults = {
        behind: [c.name for c in certify(made.plan, posed_for(made.plan, made.graph, profile), True)
                 if not c.ok]
        for behind, profile in ((BEHIND, waiting()), (0.0, waiting(behind=0.0)))
    }  # fmt: skip
    assert faults == {BEHIND: [], 0.0: ["hardware"]}


def pipelines() -> Iterator[PipelinePlan]:
    """The same two stages without waiting and with."""
    for hardware in (waiting(0.0, 0.0), waiting(behind=0.0)):
        plan = autopar.plan(
            Deep(), (2,), {"x": torch.zeros(ROWS, WIDTH)}, hardware=hardware,
            pipeline=autopar.Pipeline(2, schedule="gpipe", microbatches=4),
        )  # fmt: skip
        assert isinstance(plan, PipelinePlan)
        yield plan


def test_messages_between_stages_are_late() -> None:
    """With GPipe the first message and the last one that comes back cannot hide."""
    before, after = (plan.prediction for plan in pipelines())
    assert after.step_s >= before.step_s + 2 * LATE_S - 1e-12
    assert [j.latency_s - LATE_S for j in after.joined] == pytest.approx(
        [j.latency_s for j in before.joined]
    )


def test_whoever_is_late_keeps_all_ranks_of_the_mesh() -> None:
    prices = Prices(Mesh.parse("x=2, y=1, z=2"), waiting())
    assert prices.late(0) == prices.late(2) == pytest.approx(LATE_S * lateness(4))
    assert prices.late(1) == 0.0
