"""What gradients cost beside the operators that make them: laid in buckets, added to each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import autopar
from autopar.capture import capture
from autopar.cost.issued import Sent
from autopar.cost.laid import Laid, laid_at_use, laid_once
from autopar.cost.operators import operator_seconds
from autopar.cost.prices import Prices
from autopar.ir.conversion import Step, Traffic
from autopar.ir.graph import Node, Tensor
from autopar.ir.mesh import Mesh
from autopar.ir.placement import I, P, R, S, Sharding, Type
from autopar.ir.split import split
from autopar.plans.plan import Plan
from cost_models.hardware import load
from cost_models.ops import SCATTER_CALLS, gradient_seconds, op_seconds

ROWS, WIDTH, BRANCHES = 32, 16, 3
HARDWARE = load("cpu")


class Branches(nn.Module):
    """One tensor that so many products read, each of whose gradients comes back to it."""

    def __init__(self, branches: int, learns: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.others = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(branches))
        self.learns = learns

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        read = [x, *(x if self.learns else x.detach() for _ in self.others[1:])]
        ways = [other(each) for other, each in zip(self.others, read, strict=True)]
        return torch.stack([way.sum() for way in ways]).sum()


def test_gradients_of_several_readers_are_added() -> None:
    """Whoever goes back first, the last of them, has none to add to."""
    graph = capture(Branches(BRANCHES), {"x": torch.zeros(ROWS, WIDTH)})
    choice, prices = planned(BRANCHES, True, (1,)).choice, Prices(Mesh.of(1), HARDWARE)
    _, *readers, last = (node for node in graph.nodes if node.op == "aten.linear.default")

    def backward_s(node: Node) -> float:
        return operator_seconds(node, choice[node.name], graph, prices).backward_s

    sum_s = op_seconds(0.0, 3.0 * 4 * ROWS * WIDTH, "float32", HARDWARE.device.paced, "add")
    assert len(readers) == BRANCHES - 1
    for reader in readers:
        assert backward_s(reader) - backward_s(last) == pytest.approx(sum_s)


def test_readers_without_a_gradient_add_none() -> None:
    graph = capture(Branches(BRANCHES, learns=False), {"x": torch.zeros(ROWS, WIDTH)})
    assert not any(graph.adding.values())


def test_later_stages_send_a_gradient_too() -> None:
    """A range in two pieces adds as often as in one."""
    graph = capture(Branches(BRANCHES), {"x": torch.zeros(ROWS, WIDTH)})
    readers = [node.name for node in graph.nodes if node.op == "aten.linear.default"][1:]
    assert sum(map(len, graph.adding.values())) == BRANCHES - 1
    for reader in readers:
        pieces = split(graph, (reader,)).graphs
        assert sum(len(p) for each in pieces for p in each.adding.values()) == BRANCHES - 1


def planned(branches: int, learns: bool, mesh: tuple[int, ...]) -> Plan:
    sample = {"x": torch.zeros(ROWS, WIDTH)}
    return autopar.plan(Branches(branches, learns), mesh, sample, hardware=HARDWARE, preset="ddp")


def test_every_gradient_that_ranks_sum_is_laid_in_a_bucket() -> None:
    alone, shared = planned(BRANCHES, True, (1,)), planned(BRANCHES, True, (2,))
    operators = sum(each.backward_s for each in shared.estimate.operators)
    device = HARDWARE.device_shared_by(2).paced
    laid_s = sum(
        gradient_seconds(4 * count, device)
        for count in (WIDTH * WIDTH, WIDTH)
        for _ in range(1 + BRANCHES)
    )
    assert shared.estimate.parts.backward_s - operators == pytest.approx(laid_s)
    assert alone.estimate.parts.backward_s == pytest.approx(
        sum(each.backward_s for each in alone.estimate.operators)
    )


SUMMED = Traffic(0, "all_reduce", "backward", 4096)
SCATTERED = Traffic(1, "reduce_scatter", "backward", 8192)


def test_a_gradient_is_laid_in_its_bucket_once_whatever_is_done_there() -> None:
    prices = Prices(Mesh.of(2, 2), HARDWARE)
    assert prices.gradient([SCATTERED]) == prices.gradient([SUMMED, SCATTERED])
    assert prices.gradient([SCATTERED]) > prices.gradient([SUMMED]) > prices.gradient([]) == 0


def test_gradients_are_scattered_one_by_one_and_summed_as_one() -> None:
    prices = Prices(Mesh.of(2, 2), HARDWARE)
    one, three = (laid_at_use([Sent(SCATTERED, count)], prices) for count in (1, 3))
    calls = (1 + SCATTER_CALLS) * prices.paced.launch_s
    assert three.backward_s - one.backward_s == pytest.approx(2 * calls)
    assert one.forward_s == three.forward_s == 0
    assert laid_at_use([Sent(SUMMED, 3)], prices) == laid_at_use([Sent(SUMMED, 1)], prices)
    assert laid_at_use([Sent(SUMMED)], prices) == Laid()


def test_only_gathers_are_shared() -> None:
    """Other weights of the block take no all-reduce with one that goes through P, or I and R."""
    prices, weight = Prices(Mesh.of(2), HARDWARE), Tensor("weight", (ROWS,), "float32", True)

    def seconds(source: Type, target: Type, together: float) -> float:
        step = Step(0, Sharding((source,)), Sharding((target,)))
        return prices.weight_step(step, weight, together)

    for source, target in ((S(0), R), (S(0), I)):
        assert seconds(source, target, 8.0) < seconds(source, target, 1.0)
    for source, target in ((S(0), P), (P, R), (I, R)):
        assert seconds(source, target, 8.0) == seconds(source, target, 1.0) > 0


def test_what_is_gathered_once_is_copied_by_the_bucket() -> None:
    prices = Prices(Mesh.of(2), HARDWARE)
    gathered = Traffic(0, "all_gather", "forward", 4096)
    together = prices.copied(replace(gathered, nbytes=3 * gathered.nbytes))
    assert laid_once([[gathered]] * 3, prices, shares=1) == Laid(forward_s=together)
