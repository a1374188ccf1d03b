"""Which bytes prices speak of: parameters as they rest, and of tables what is looked up."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autopar
from autopar.capture import capture
from autopar.cost.operators import MIXTURE_CALLS, moved_nbytes, unread_nbytes
from autopar.cost.parameters import summed_seconds
from autopar.cost.prices import Prices
from autopar.ir.graph import Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import R, Sharding
from autopar.ops.experts import routed_experts
from autopar.plans.decisions import OpSharding
from autopar.plans.plan import Plan
from cost_models.curves import Curve
from cost_models.hardware import load
from cost_models.measured import Work

ROWS, WIDTH, EXPERTS = 64, 8, 4


class Lookup(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, WIDTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.table(ids).sum())


def lookup(words: int) -> tuple[int, int]:
    """Bytes that the lookup moves forward, and that its table has besides."""
    graph = capture(Lookup(words), {"ids": torch.zeros(ROWS, dtype=torch.long)})
    (node,) = (node for node in graph.nodes if node.op == "aten.embedding.default")
    whole = Sharding((R,))
    sharding = OpSharding((whole, whole), (whole,), ("",))
    mesh = Mesh.of(1)
    return (
        moved_nbytes(node, sharding, graph, mesh), unread_nbytes(node, sharding, graph, mesh)
    )  # fmt: skip


@pytest.mark.parametrize("words", [ROWS, 1000 * ROWS])
def test_a_lookup_reads_what_it_finds(words: int) -> None:
    found = 4 * ROWS * WIDTH
    assert lookup(words) == (2 * found + 8 * ROWS, 4 * words * WIDTH - found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_sums_of_gradients_are_as_wide_as_weights_rest(dtype: str) -> None:
    prices = Prices(Mesh.of(2), load("h100"), master_itemsize=4)
    tensor = Tensor("w", (64, 64), dtype, True)
    assert summed_seconds(tensor, Sharding((R,)), prices) == prices.summed(4 * 64 * 64)


def test_weights_in_float32_are_updated_as_such() -> None:
    """In bfloat16 the step's are half as wide, and the optimizer's are not."""

    def plan(precision: str | None) -> Plan:
        made = autopar.plan(
            nn.Linear(512, 512), (2,), {"input": torch.zeros(8, 512)}, preset="ddp", hardware="h100",
            precision=precision, loss=lambda output: output.float().square().mean(),
        )  # fmt: skip
        assert isinstance(made, Plan)
        return made

    parts = [plan(precision).estimate.parts for precision in (None, "bfloat16")]
    assert parts[0] is not None and parts[1] is not None
    assert parts[0].update_s == pytest.approx(parts[1].update_s)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(EXPERTS, 2 * WIDTH, WIDTH))
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * WIDTH))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        return routed_experts(x, chosen, shares, self.up, self.down, "silu").square().mean()


def test_every_expert_costs_calls_however_few_tokens_come() -> None:
    """Split among ranks, each goes through its own."""
    inputs = {
        "x": torch.randn(ROWS, WIDTH),
        "chosen": torch.zeros(ROWS, 1, dtype=torch.long),
        "shares": torch.ones(ROWS, 1),
    }
    hardware, found = load("cpu"), {}
    for ranks in (1, 2):
        pinned = {"up": "[S(0)]", "down": "[S(0)]"} if ranks > 1 else {}
        plan = autopar.plan(Mixture(), (ranks,), inputs, hardware=hardware, constraints=pinned)
        assert isinstance(plan, Plan)
        (timed,) = (op for op in plan.estimate.operators if "routed_experts" in op.node)
        found[ranks] = timed.forward_s / hardware.device_shared_by(ranks).launch_s
    once, each = MIXTURE_CALLS[0]
    assert found[1] > once + EXPERTS * each
    assert once + EXPERTS * each / 2 < found[2] < found[1]


class Attention(nn.Module):
    def __init__(self, learned: bool) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2, 16, 16), requires_grad=learned)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, self.bias).square().mean()


def test_attention_is_another_operator_where_its_bias_is_learned() -> None:
    """For which a profile may have a curve."""
    hardware, points = load("cpu"), ((1e3, 1e-3), (1e8, 1e-3))
    slow = Curve("biased_attention", "float32", points, points)
    device = replace(hardware.device, curves=(slow,))
    found = []
    for learned in (False, True):
        inputs = {"x": torch.randn(4, 2, 16, 8, requires_grad=not learned)}
        plan = autopar.plan(
            Attention(learned), (1,), inputs, hardware=replace(hardware, device=device)
        )
        assert isinstance(plan, Plan)
        (attention,) = (op for op in plan.estimate.operators if "attention" in op.node)
        found.append(attention.forward_s)
    assert found[1] > 10 * found[0]


def test_a_curve_of_its_own_has_an_operators_calls() -> None:
    """And what lies between them."""
    work = Work(0.0, 4e6, "float32", "autopar.routed_experts.default", calls=100, between=8e6)
    hardware, points = load("cpu"), ((1e6, 1.0), (1e8, 1.0))
    known = Curve("routed_experts", "float32", points, points)
    device = replace(hardware.device, curves=())
    seconds = {
        curves: Prices(
            Mesh.of(1), replace(hardware, device=replace(device, curves=curves))
        ).own(work)
        for curves in ((), (known,))
    }  # fmt: skip
    prices = Prices(Mesh.of(1), replace(hardware, device=device))
    between = prices.own(Work(0.0, 8e6, "float32"))
    launched = 98 * prices.device.launch_s
    assert seconds[()] == pytest.approx(seconds[known,] + between + launched)
