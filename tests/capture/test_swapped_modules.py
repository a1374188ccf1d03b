"""Forwards that change their modules, and traces that are begun anew: every one starts alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autopar.capture import capture
from autopar.errors import CaptureError

BATCH = {"x": torch.zeros(8, 4)}


class Layer(nn.Module):
    """A linear layer that may be swapped for another of the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = "sparse"
        self.inner: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def swap(self) -> None:
        """As BigBird leaves its sparse attention where a sequence is short."""
        if self.kind == "full":
            return
        self.kind = "full"
        other = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        other[0] = self.inner[0]
        self.inner = other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.inner[1], nn.ReLU if self.kind == "full" else nn.Tanh)
        y: torch.Tensor = self.inner(x)
        return y.mul_(0.5)  # written in place: what was remembered does not do


class Model(nn.Module):
    """Three layers, and what is done to them in forward."""

    def __init__(self, change: Callable[[Model], object]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.change, self.first, self.head = change, True, None
        self.odd: nn.Module = nn.Identity()
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self)
        for layer in self.layers:
            x = layer(x)
        x = self.odd(x)
        if self.head is not None:
            x = self.head(x)
        return x.sum()


def swapped(model: Model) -> None:
    for layer in model.layers:
        layer.swap()


def late(model: Model) -> None:
    if not isinstance(model.head, nn.Module):
        del model.head
        model.head = nn.Linear(4, 4)


def late_parameter(model: Model) -> None:
    if not isinstance(model.layers[0].inner[0], Scaled):
        model.layers[0].inner[0] = Scaled()


class Scaled(nn.Module):
    """A parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def alternating(model: Model) -> None:
    model.odd = nn.Identity() if isinstance(model.odd, nn.Tanh) else nn.Tanh()


def anew(model: Model) -> None:
    model.odd = nn.Tanh()


def dropped(model: Model) -> None:
    if len(model.layers) == 3:
        del model.layers[2]


def once(model: Model) -> None:
    if model.first:
        model.first = False
        model.layers[1].kind, model.layers[1].inner[1] = "full", nn.ReLU()
    else:
        model.layers[1].kind, model.layers[1].inner[1] = "sparse", nn.Tanh()


def first_only(model: Model) -> None:
    """The flag is down before the write in place that begins the trace anew."""
    model.odd.negative = model.first  # type: ignore[assignment]
    model.first = False


class Negated(nn.Module):
    """Negates where it is told to."""

    negative = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -x if self.negative else x


def structure(model: nn.Module) -> list[tuple[str, int]]:
    return [(name, id(part)) for name, part in model.named_modules()]


def built(change: Callable[[Model], object]) -> Model:
    model = Model(change)
    if change is first_only:
        model.odd = Negated()
    return model


@pytest.mark.parametrize("change", [swapped, anew])
def test_a_swap_that_every_step_sees_alike_is_captured(change: Callable[[Model], object]) -> None:
    model = built(change)
    before = structure(model), dict(model.named_parameters())
    graph = capture(model, BATCH)
    again = capture(model, BATCH)
    assert graph == again
    assert structure(model) == before[0]
    assert dict(model.named_parameters()).keys() == before[1].keys()
    operators = {node.op for node in graph.nodes}
    assert ("aten.relu.default" in operators) == (change is swapped)


@pytest.mark.parametrize("change", [late, late_parameter, alternating, dropped, once, first_only])
def test_a_model_that_is_another_in_the_next_step_is_refused(
    change: Callable[[Model], object],
) -> None:
    model = built(change)
    before = structure(model)
    with pytest.raises(CaptureError, match="forward changes '"):
        capture(model, BATCH)
    assert structure(model) == before
    assert model.first
    assert all(layer.kind == "sparse" for layer in model.layers)


def replaced(model: Model) -> None:
    _last(model).weight = nn.Parameter(_last(model).weight * 0.9)


def _last(model: Model) -> nn.Linear:
    last = model.layers[2].inner[0]
    assert isinstance(last, nn.Linear)
    return last


def deleted(model: Model) -> None:
    weight = _last(model).weight
    del _last(model).weight
    _last(model).weight = nn.Parameter(weight.detach().abs())


@pytest.mark.parametrize("change", [replaced, deleted])
def test_a_parameter_that_forward_replaces_is_refused(change: Callable[[Model], object]) -> None:
    model = built(change)
    before = dict(model.named_parameters())
    with pytest.raises(CaptureError, match=r"forward replaces the parameter 'layers\..\.inner\.0"):
        capture(model, BATCH)
    assert all(p is before[name] for name, p in model.named_parameters())
