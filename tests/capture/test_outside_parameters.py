"""Parameters that no module of the model has registered are refused, wherever they live."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autopar.capture import capture
from autopar.errors import CaptureError

SCALE = nn.Parameter(torch.ones(4))


@dataclasses.dataclass
class Box:
    """An object that holds one."""

    weight: torch.Tensor


class Centres(nn.Module):
    """A loss that has a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(4))

    def forward(self, output: torch.Tensor) -> torch.Tensor:
        return (output - self.centre).square().mean()


class Model(nn.Module):
    """Three equal layers, then a function of the module and their result."""

    def __init__(self, body: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.body = body
        self.listed = [nn.Parameter(torch.ones(4)) for _ in range(2)]
        self.named = {"a": nn.Parameter(torch.ones(4))}
        self.box = Box(nn.Parameter(torch.ones(4)))
        self.hidden = [nn.Linear(4, 4)]
        self.plain = torch.ones(4, requires_grad=True)
        self.frozen = [nn.Parameter(torch.ones(4), requires_grad=False)]
        self.register_buffer("scale", torch.ones(4))
        self.same, self.buffers_too = [self.layers[0].weight], [self.scale]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return self.body(self, x)


def closure() -> Callable[[torch.Tensor], torch.Tensor]:
    scale = nn.Parameter(torch.ones(4))
    return lambda output: (output * scale).square().mean()


IN_FORWARD: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "listed[1]": lambda m, x: (x * m.listed[1]).sum(),
    "named['a']": lambda m, x: (x * m.named["a"]).sum(),
    "box.weight": lambda m, x: (x * m.box.weight).sum(),
    "hidden[0].weight": lambda m, x: m.hidden[0](x).sum(),
    "plain": lambda m, x: (x * m.plain).sum(),
    "frozen[0]": lambda m, x: (x * m.frozen[0]).sum(),
    "SCALE": lambda m, x: (x * SCALE).sum(),
}
IN_THE_LOSS: dict[str, Callable[..., torch.Tensor]] = {
    "scale of closure": closure(),
    "loss.centre": Centres(),
    "SCALE": lambda output: (output * SCALE).mean(),
}


@pytest.mark.parametrize("place", IN_FORWARD)
def test_in_forward(place: str) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(Model(IN_FORWARD[place]), {"x": torch.ones(2, 4)})
    told = str(caught.value)
    assert place in told and __file__ in told and "nn.ParameterList" in told


@pytest.mark.parametrize("place", IN_THE_LOSS)
def test_in_the_loss(place: str) -> None:
    model = Model(lambda m, x: x)
    with pytest.raises(CaptureError) as caught:
        capture(model, {"x": torch.ones(2, 4)}, loss=IN_THE_LOSS[place])
    told = str(caught.value)
    assert place in told and __file__ in told and "into the module that returns it" in told


def test_registered_ones_are_themselves_however_they_are_reached() -> None:
    model = Model(lambda m, x: (x @ m.same[0] * m.buffers_too[0]).sum())
    graph = capture(model, {"x": torch.ones(2, 4)})
    assert not [node for node in graph.nodes if node.op == "constant"]
    (weight,) = (n for n in graph.leaves("parameter") if n.target == "layers.0.weight")
    assert len(graph.consumers[weight.name]) == 2


def test_a_penalty_over_the_models_parameters_is_trained() -> None:
    model = Model(lambda m, x: x)

    def loss(output: torch.Tensor) -> torch.Tensor:
        return output.mean() + sum(p.square().sum() for p in model.parameters())

    graph = capture(model, {"x": torch.ones(2, 4)}, loss=loss)
    assert not [node for node in graph.nodes if node.op == "constant"]
    for leaf in graph.leaves("parameter"):
        assert len(graph.consumers[leaf.name]) == 2


def test_the_remedies_work() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.loss = Model(lambda m, x: x * m.kept), Centres()
            self.model.listed = nn.ParameterList(self.model.listed)
            self.model.register_buffer("kept", self.model.plain.detach())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.loss(self.model(x) * self.model.listed[1])

    graph = capture(Whole(), {"x": torch.ones(2, 4)})
    names = [leaf.target for leaf in graph.leaves("parameter")]
    assert "loss.centre" in names and "model.listed.1" in names
