"""Reductions of gradients beside the backward: what hides, and what it costs all the same."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

import autopar
from autopar.api import captured_graph
from autopar.cost.covering import covering, late
from autopar.cost.parameters import LITTLE
from autopar.plans.buckets import SHARES
from autopar.plans.estimate import Estimate
from autopar.plans.plan import Plan
from cost_models.hardware import load

LAYERS, WIDTH, ROWS = 12, 512, 4096
BEFORE_A_SUM = ["layers_11", "x_1", "square", "sum_", "div"]
"""What goes back before anything is summed: the last layer's weight is a megabyte, and a bucket."""


class Deep(nn.Module):
    """Gradients of a megabyte each, behind products long enough to hide them all."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x.square().mean()


def planned(overlap: float, latency_s: float | None = None) -> Plan:
    """Data parallelism on two H100 that overlap so well, joined by a link of this latency."""
    hardware = load("h100")
    hardware = replace(hardware, device=replace(hardware.device, overlap=overlap))
    if latency_s is not None:
        link = replace(hardware.intra_host, latency_s=latency_s)
        hardware = replace(hardware, intra_host=link)
    return autopar.plan(
        Deep(), (2,), {"x": torch.zeros(ROWS, WIDTH)}, hardware=hardware, preset="ddp"
    )


def under(overlap: float) -> Estimate:
    return planned(overlap).estimate


@pytest.fixture(scope="module")
def whole() -> Estimate:
    """Nothing is lost."""
    return under(1.0)


def test_the_last_bucket_hides_nowhere(whole: Estimate) -> None:
    (reduction,) = (f for f in whole.flows if f.collective == "all_reduce" and f.calls > 1)
    assert reduction.calls > 2
    assert 0 < whole.hidden_s < reduction.seconds
    assert whole.hidden_s == pytest.approx(whole.parts.hideable[0][1])


@pytest.mark.parametrize("overlap", [0.25, 0.5, 0.0])
def test_what_hides_costs_what_it_takes_from_compute(
    whole: Estimate, overlap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute covers all of it either way: what is lost is a share of the communication."""
    monkeypatch.setattr("autopar.cost.parameters.SHARES", SHARES[:1])
    partly = under(overlap)
    assert partly.hidden_s == pytest.approx(overlap * whole.hidden_s)
    lost = (1 - overlap) * whole.hidden_s
    assert partly.step_s == pytest.approx(whole.step_s + lost)


def test_where_nothing_hides_fewer_buckets_spare_latencies(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = planned(0.0), planned(1.0)
    assert (few.buckets, many.buckets) == (1, 8)
    assert few.estimate.flows[0].calls < many.estimate.flows[0].calls
    monkeypatch.setattr("autopar.cost.parameters.SHARES", SHARES[:1])
    assert few.estimate.step_s < under(0.0).step_s


def hides_nothing(model: nn.Module) -> list[str]:
    graph = captured_graph(model, {"x": torch.zeros(2, WIDTH)})
    found = covering(graph, SHARES[0])
    return [node.name for node in graph.nodes if not node.is_leaf and found[node.name] == 0.0]


def test_what_goes_back_before_the_first_bucket_is_full_hides_nothing() -> None:
    """A head that goes back for longer than the layers leaves their sums to be waited for."""

    class Headed(Deep):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDTH, 64 * WIDTH, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.head(x).square().mean()

    assert hides_nothing(Deep()) == BEFORE_A_SUM
    assert hides_nothing(Headed()) == ["head", *BEFORE_A_SUM[2:]]


@pytest.mark.parametrize(("layers", "share"), [(12, 0.5), (3, 0.5), (2, 1.0)])
def test_the_first_bucket_hides_no_more_than_it_has(layers: int, share: float) -> None:
    """Half a megabyte, then one: its link rests until the second is full, unless that is the last."""

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [WIDTH] * layers + [WIDTH // 2]
            self.layers = nn.ModuleList(
                nn.Linear(*pair, bias=False) for pair in itertools.pairwise(widths)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x).relu()
            return x.mean()

    graph = captured_graph(Narrow(), {"x": torch.zeros(2, WIDTH)})
    found = covering(graph, SHARES[0])
    last = layers - 1
    assert found[f"layers_{last}"] == 0.0
    assert found[f"layers_{last - 1}"] == share
    if layers > 2:
        assert found[f"layers_{last - 2}"] == 1.0


def test_a_gradient_travels_with_those_of_its_first_reader() -> None:
    """A weight that the last layer shares with the first is whole when the first has gone back: other
    layers' do not wait for it."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
            self.shared = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layers[0](x)
            x = self.layers[1](self.shared(x))
            return self.shared(self.layers[2](x)).mean()

    assert hides_nothing(Shared()) == ["layers_2", "shared_1", "sum_", "div"]


class Embedded(Deep):
    """Two embeddings are whole at the end, as is the first layer; the last layer is never read."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, WIDTH)
        self.places = nn.Embedding(8, WIDTH)
        self.unread = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.table(x) + self.places(x))


def test_gradients_are_late_where_no_product_is_left() -> None:
    graph = captured_graph(Embedded(), {"x": torch.zeros(2, 4, dtype=torch.long)})
    assert late(graph) == {"unread_weight", "table_weight", "places_weight", "layers_0_weight"}
    frozen = Embedded()
    frozen.layers[:6].requires_grad_(False)
    frozen.table.requires_grad_(False)
    frozen.places.requires_grad_(False)
    graph = captured_graph(frozen, {"x": torch.zeros(2, 4, dtype=torch.long)})
    assert late(graph) == {"unread_weight", "layers_6_weight"}


def test_a_bucket_with_a_late_gradient_hides_nothing(
    whole: Estimate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer's, with the embeddings, is the last but one; it is waited for all the same."""
    monkeypatch.setattr("autopar.cost.parameters.SHARES", SHARES[:1])
    hardware = load("h100")
    hardware = replace(hardware, device=replace(hardware.device, overlap=1.0))
    sample = {"x": torch.zeros(ROWS // 4, 4, dtype=torch.long)}
    plan = autopar.plan(Embedded(), (2,), sample, hardware=hardware, preset="ddp")
    (reduction,) = (f for f in plan.estimate.flows if f.collective == "all_reduce" and f.calls > 1)
    assert reduction.calls == LAYERS + 1
    assert plan.estimate.parts.hideable == whole.parts.hideable


def test_little_overlap_is_no_reason_for_more_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned(LITTLE).buckets == 2
    monkeypatch.setattr("autopar.cost.parameters.LITTLE", LITTLE + 0.1)
    assert planned(LITTLE).buckets == 1


@pytest.mark.thorough
def test_each_link_hides_its_own_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sum takes from compute goes with its bytes: of a slow link's time that is little."""
    monkeypatch.setattr("autopar.cost.parameters.SHARES", SHARES[:1])
    hardware = load("h100")
    hardware = replace(hardware, device=replace(hardware.device, overlap=0.5))

    def hidden_s(devices_per_host: int, across: float | None) -> float:
        link = replace(hardware.inter_host, overlap=across)
        found = replace(hardware, devices_per_host=devices_per_host, inter_host=link)
        sample = {"x": torch.zeros(8 * ROWS, WIDTH)}
        estimate = autopar.plan(Deep(), (2,), sample, hardware=found, preset="ddp").estimate
        own = 0.5 if across is None or devices_per_host > 1 else across
        backward_s = sum(o.backward_s for o in estimate.operators if o.node not in BEFORE_A_SUM)
        assert estimate.parts.covers_s == pytest.approx(own * backward_s)
        return sum(seconds for _, seconds in estimate.parts.hideable)

    assert hidden_s(1, 1.0) == pytest.approx(2 * hidden_s(1, None)) and hidden_s(1, None) > 0
    assert hidden_s(1, 0.5) == hidden_s(1, None)
    assert hidden_s(2, 1.0) == hidden_s(2, None) > 0


def test_the_solver_counts_every_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where latency is most of it, nine buckets cost the objective what they cost the estimate."""
    monkeypatch.setattr("autopar.cost.parameters.SHARES", SHARES[:1])
    plan = planned(0.0, latency_s=1e-3)
    (reduction,) = (f for f in plan.estimate.flows if f.collective == "all_reduce" and f.calls > 1)
    assert reduction.seconds > 0.8 * plan.estimate.step_s
    assert plan.objective_s == pytest.approx(plan.estimate.step_s, rel=0.15)
