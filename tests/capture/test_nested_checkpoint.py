"""Checkpoints inside checkpoints, and what stands behind them, carry gradients as they do eagerly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autopar.api import captured_graph

Step = Callable[[nn.ModuleList, torch.Tensor], torch.Tensor]


def inside(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(
        lambda z: z + checkpoint(layers[1], z, use_reentrant=False), x, use_reentrant=False
    )


def twice_inside(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda z: inside(layers, z) + z, x, use_reentrant=False)


def two_inside(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    def both(z: torch.Tensor) -> torch.Tensor:
        z = checkpoint(layers[1], z, use_reentrant=False)
        made: torch.Tensor = checkpoint(layers[1], z, use_reentrant=False)
        return made

    return checkpoint(both, x, use_reentrant=False)


def reentrant_outside(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(
        lambda z: z + checkpoint(layers[1], z, use_reentrant=False), x, use_reentrant=True
    )


def below_saved_tensors_hooks(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return checkpoint(layers[1], x, use_reentrant=False)


def without_gradient_beside(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        fixed = layers[1](x)
    return inside(layers, x) + fixed


class Model(nn.Module):
    def __init__(self, step: Step) -> None:
        super().__init__()
        self.layers, self.step = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers[2](self.step(self.layers, self.layers[0](x)))
        return made.square().mean()


STEPS = [
    inside, twice_inside, two_inside, reentrant_outside, below_saved_tensors_hooks,
    without_gradient_beside,
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_gradients_flow_behind_nested_checkpoints(step: Step) -> None:
    graph = captured_graph(Model(step), {"x": torch.randn(4, 8)})
    assert graph.loss is not None and graph.tensors[graph.loss].differentiable
    detached = [node for node in graph.nodes if node.op == "aten.detach.default"]
    assert bool(detached) == (step is without_gradient_beside), detached
