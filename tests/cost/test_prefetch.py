"""Gathers one block ahead: what of them hides, when a plan does it, and the same figures everywhere."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import autopar
from autopar.api import captured_graph
from autopar.explain.replay import Conditions, play
from autopar.ir.graph import Graph
from autopar.plans.plan import Plan
from autopar.sharding.asked import posed_for
from autopar.verify import certify
from autopar.verify.recomputed import RecomputedFigures
from cost_models.hardware import Hardware, load

LAYERS, WIDTH, ROWS = 6, 512, 4096
SHIPPED = 0.8
"""The overlap of the profile."""
SLOW = 50e9
"""Bytes a second."""


class Block(nn.Module):
    """Two products, whose weights travel together."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(self.up(x).relu())
        return made


class Deep(nn.Module):
    """Equal blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def machine(overlap: float = SHIPPED, bytes_per_s: float | None = None) -> Hardware:
    """H100s that overlap so well, joined by a link of this rate."""
    hardware = load("h100")
    if overlap != SHIPPED:
        hardware = replace(hardware, device=replace(hardware.device, overlap=overlap))
    if bytes_per_s is not None:
        link = replace(hardware.intra_host, bytes_per_s=bytes_per_s)
        hardware = replace(hardware, intra_host=link)
    return hardware


def planned(hardware: Hardware, rows: int = ROWS) -> Plan:
    """Fully sharded data parallelism on two of them."""
    batch = {"x": torch.zeros(rows, WIDTH)}
    return autopar.plan(Deep(), (2,), batch, hardware=hardware, preset="fsdp")


def sent_s(plan: Plan, direction: str) -> float:
    """Seconds of the weights' gathers, and in the backward of their gradients' reductions."""
    return sum(
        flow.seconds
        for flow in plan.estimate.flows
        if flow.collective in ("all_gather", "reduce_scatter") and flow.direction == direction
    )


def hidden_s(plan: Plan, direction: str) -> float:
    assert plan.estimate.parts is not None
    return sum(e.hidden_s for e in plan.estimate.parts.prefetched if e.direction == direction)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_behind_long_compute_all_of_a_loop_but_one_block_is_hidden(direction: str) -> None:
    """The first block is in no loop: its input has no gradient."""
    plan = planned(machine(1.0))
    assert plan.prefetch
    share = (LAYERS - 2) / LAYERS
    assert hidden_s(plan, direction) == pytest.approx(share * sent_s(plan, direction), rel=0.03)


def test_short_compute_hides_no_more_than_itself() -> None:
    parts = planned(machine(1.0, SLOW), ROWS // 64).estimate.parts
    assert parts is not None and parts.prefetched
    for each in parts.prefetched:
        assert each.covers_s < each.hideable_s and each.hidden_s == each.covers_s
    (forward,) = (each for each in parts.prefetched if each.direction == "forward")
    assert parts.forward_s / LAYERS < forward.covers_s < parts.forward_s


def test_without_overlap_nothing_is_gathered_ahead() -> None:
    plan = planned(machine(0.0))
    assert not plan.prefetch and not plan.estimate.parts.prefetched  # type: ignore[union-attr]


def test_a_memory_limit_comes_first() -> None:
    """Two blocks' gathered weights do not fit where one does."""
    hardware = machine(bytes_per_s=SLOW)
    early = planned(hardware, ROWS // 64)
    limit = early.estimate.memory_nbytes - 1
    limited = replace(early, asked=replace(early.asked, memory_limit=limit))
    posed = posed_for(limited, graph(ROWS // 64), hardware, None)
    plan = posed.assembled(RecomputedFigures(limited, posed).decisions)
    assert early.prefetch and not plan.prefetch
    assert plan.estimate.memory_nbytes <= limit
    assert plan.estimate.step_s > early.estimate.step_s


def test_reductions_hide_behind_what_gathers_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    early = planned(machine(1.0))
    monkeypatch.setattr("autopar.sharding.assemble.WORTH", -math.inf)
    plain = planned(machine(1.0))
    assert early.estimate.parts is not None and plain.estimate.parts is not None
    taken = plain.estimate.parts.covers_s - early.estimate.parts.covers_s
    assert taken == pytest.approx(hidden_s(early, "backward"))


def test_the_simulated_step_is_the_plans() -> None:
    plan = planned(machine())
    played = play(plan)
    assert played.step_s == pytest.approx(plan.estimate.step_s)
    hidden = [s for s in played.rows[0].spans if s.what == "weights of blocks"]
    assert sum(s.end - s.start for s in hidden) == pytest.approx(
        hidden_s(plan, "forward") + hidden_s(plan, "backward")
    )
    slower = play(plan, Conditions(bandwidth={"x": 0.5}))
    assert slower.step_s > played.step_s


def test_a_plan_is_saved_and_verified_with_it() -> None:
    plan = planned(machine())
    again = Plan.from_json(plan.to_json())
    assert again == plan and again.prefetch
    assert certified(plan)
    content = json.loads(plan.to_json())
    content["estimate"]["parts"]["prefetched"][0]["covers_s"] *= 2
    assert not certified(Plan.from_json(json.dumps(content)))


def graph(rows: int = ROWS) -> Graph:
    return captured_graph(Deep(), {"x": torch.zeros(rows, WIDTH)})


def certified(plan: Plan) -> bool:
    posed = posed_for(plan, graph(), machine(), None)
    return all(check.ok for check in certify(plan, posed, bound=False))
