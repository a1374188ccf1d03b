"""Repeated blocks are found by structure, hidden behind no module name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from autopar.capture import Repeat, capture, repeats
from autopar.ir.graph import Origin
from tests.models import HIDDEN, bert, gpt2, llama


@pytest.mark.parametrize(("make", "layers"), [(gpt2, 2), (gpt2, 5), (llama, 3), (bert, 4)])
def test_transformer_layers(make: object, layers: int) -> None:
    model, inputs, _ = make(layers)  # type: ignore[operator]
    graph = capture(model, inputs)
    (found,) = repeats(graph)
    assert found.count == layers
    modules = {graph.nodes[i].origin.module for i in found.block(0)}
    assert all(".0" in module for module in modules if module)
    assert len([i for i in found.block(1) if ".1" in graph.nodes[i].origin.module]) > 15


def test_names_do_not_matter() -> None:
    model, inputs, _ = llama(3)
    graph = capture(model, inputs)
    anonymous = replace(graph, nodes=tuple(replace(n, origin=Origin()) for n in graph.nodes))
    assert repeats(anonymous) == repeats(graph)


class Stack(nn.Module):
    """Blocks that alternate; `odd` differs in its activation."""

    def __init__(self, layers: int, alternate: bool, shared: bool = False) -> None:
        super().__init__()
        made = [nn.Linear(HIDDEN, HIDDEN) for _ in range(1 if shared else layers)]
        self.layers = nn.ModuleList(made * layers if shared else made)
        self.alternate = alternate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.sum() > 0
        x = self.layers[0](x)
        for index, layer in enumerate(self.layers):
            hidden = layer(x).where(mask, 0.0)
            odd = self.alternate and index % 2
            x = x + (hidden.tanh() if odd else hidden.sigmoid())
        return x.sum()


def test_period_of_two_layers() -> None:
    inputs = (torch.ones(4, HIDDEN),)
    (found,) = repeats(capture(Stack(8, alternate=True), inputs))
    assert (found.period, found.count) == (8, 4)
    (plain,) = repeats(capture(Stack(8, alternate=False), inputs))
    assert (plain.period, plain.count) == (4, 8)


def test_shared_weights_repeat_too() -> None:
    (found,) = repeats(capture(Stack(6, alternate=False, shared=True), (torch.ones(4, HIDDEN),)))
    assert found.count == 6


def test_side_by_side_is_no_repeat() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([head(x).tanh() for head in self.heads]).sum()

    assert repeats(capture(Heads(), (torch.ones(4, HIDDEN),))) == ()


def test_a_skip_over_two_blocks_is_no_repeat() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states = [self.layers[0](x), self.layers[1](x)]
            for layer in self.layers[2:]:
                states.append(layer(states[-1]) + states[-2])
            return states[-1].sum()

    graph = capture(Skip(), (torch.ones(4, HIDDEN),))
    assert all(found.count < 3 for found in repeats(graph))


def test_blocks_of_a_repeat() -> None:
    found = Repeat(10, 3, 4)
    assert found.stop == 22
    assert list(found.block(2)) == [16, 17, 18]
