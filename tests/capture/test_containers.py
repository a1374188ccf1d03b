"""Containers whose classes override Python's methods are only looked at."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.capture import capture, containers

CALLS: list[str] = []
METHODS = (
    "__getitem__", "__setitem__", "__iter__", "__len__", "__eq__", "__contains__", "keys", "items",
    "values", "get", "pop", "clear", "update", "extend", "append", "add", "copy",
)  # fmt: skip


def spied(kind: type) -> type:
    """A subclass whose methods are recorded, and then fail."""

    def method(name: str) -> Any:
        def call(self: Any, *args: Any) -> Any:
            CALLS.append(name)
            raise AssertionError(f"{kind.__name__}.{name} was called")

        return call

    own = {name: method(name) for name in METHODS if hasattr(kind, name)}
    return type(f"Spied{kind.__name__}", (kind,), {**own, "__hash__": object.__hash__})


class Answers:
    """Has an attribute of any name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__length_hint__" and name != "__next__":
            raise AttributeError(name)
        CALLS.append(name)
        return lambda *args: CALLS.append(f"{name}()")


class Instances(OrderedDict[str, Any]):
    """As transformers' registry of activations: what is read is an instance of what is stored."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()


ACTIVATIONS = Instances(tanh=nn.Tanh, relu=nn.ReLU, silu=nn.SiLU)
HELD: dict[str, Any] = {}


class Reads(nn.Module):
    """Three layers; forward reads a registry, and a global that has spied containers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.held = list(HELD.values())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.held is not None and HELD is not None
        for layer, name in zip(self.layers, ("tanh", "relu", "silu"), strict=True):
            x = ACTIVATIONS[name](layer(x))
        return x.square().mean()


def test_a_registry_of_classes() -> None:
    before = [(name, dict.__getitem__(ACTIVATIONS, name)) for name in OrderedDict.keys(ACTIVATIONS)]
    plan = autopar.plan(Reads(), 2, {"x": torch.randn(4, 4)}, hardware="h100", preset="fsdp")
    assert plan.parameter
    after = [(name, dict.__getitem__(ACTIVATIONS, name)) for name in OrderedDict.keys(ACTIVATIONS)]
    assert after == before


@pytest.mark.parametrize("kind", containers.KINDS)
def test_methods_of_subclasses_are_not_called(kind: type) -> None:
    if issubclass(kind, dict):
        held = spied(kind)()
        kind.__setitem__(held, "a", 1)
    else:
        held = spied(kind)([1, 2])
    HELD.clear()
    HELD.update(held=held, answers=Answers())
    CALLS.clear()
    capture(Reads(), {"x": torch.randn(4, 4)})
    assert not CALLS
    HELD.clear()


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_dicts_are_restored(kind: Any) -> None:
    class Own(kind):  # type: ignore[misc]
        __getitem__ = __setitem__ = clear = update = None

    held = Own()
    for number, name in enumerate("abc"):
        kind.__setitem__(held, name, number + 1)
    kind.__delitem__(held, "a")
    containers.restore_items(held, {"a": 1, "b": 2})
    assert list(kind.items(held)) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("kind", [list, deque, set])
def test_lists_are_restored(kind: Any) -> None:
    class Own(kind):  # type: ignore[misc]
        clear = update = extend = __iter__ = None

    held = Own([1, 2])
    (kind.add if kind is set else kind.append)(held, 3)
    containers.restore_members(held, [1, 2])
    assert list(kind.__iter__(held)) == [1, 2]
