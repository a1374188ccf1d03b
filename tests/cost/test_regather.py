"""Gathered tensors that are not kept: what a block hands on is not kept by its readers either."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autopar.capture import capture
from autopar.capture.saved import saved
from autopar.ir.mesh import Mesh
from autopar.ir.placement import R, S, Sharding
from autopar.memory.saved_tensors import SavedTensors
from autopar.plans.decisions import Conversion, OpSharding
from autopar.runtime import regather


def gathers_again(returned: bool) -> int:
    """How often a tensor is gathered again that one block gathers and that is saved outside of it."""
    calls = []
    shard = torch.ones(2, requires_grad=True)

    def start(shards: list[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        calls.append(shards)
        return lambda: [torch.cat([x, x]) for x in shards]

    with regather.regathering():
        with regather.scope() as leaving:
            whole = torch.cat([shard, shard])
            regather.remember([whole], [shard], start)
            result = leaving((whole,) if returned else (whole + 1,))
        loss = whole.square().sum() + sum(x.sum() for x in result)
    loss.backward()
    assert torch.equal(shard.grad, torch.full((2,), 6.0))
    return len(calls)


def test_what_leaves_a_block_is_gathered_again() -> None:
    assert gathers_again(returned=True) == 1


def test_what_stays_in_a_block_is_forgotten_there() -> None:
    assert gathers_again(returned=False) == 0


class Mixed(nn.Module):
    """An einsum of a product whose elements lie as a permuted operand's do."""

    def __init__(self, permuted: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6, 6, 4))
        self.scale = nn.Parameter(torch.rand(6))
        self.permuted = permuted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = (1, 0, 2) if self.permuted else (0, 1, 2)
        product = self.weight.permute(order) * self.weight.permute(order).exp()
        return torch.einsum("sbl,slh->sbh", x * self.scale, product).square().sum()


@pytest.mark.parametrize("permuted", [False, True])
def test_what_an_einsum_lays_out_anew_is_not_gathered_again(permuted: bool) -> None:
    """Behind a gather elements lie in row-major order, so einsum keeps a copy and asks for no gather."""
    graph = capture(Mixed(permuted), {"x": torch.rand(6, 2, 6)})
    maker = graph.producer["product"]
    whole, parts = Sharding((R,)), Sharding((S(0),))
    shardings = {
        node.name: OpSharding((whole,) * len(node.operands), (whole,) * len(node.outputs), ("",))
        for node in graph.nodes
    }
    shardings[maker.name] = OpSharding((whole, whole), (parts,), ("",))
    gather = Conversion("product", 0, parts, whole, regather=True)
    keeps = SavedTensors(graph, shardings, (gather,), Mesh.of(2), saved(graph))
    assert keeps.effective()[0].regather is not permuted
